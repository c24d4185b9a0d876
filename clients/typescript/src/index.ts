/** Workers and a client for flowgate, without a runtime dependency. */

export { Client } from "./client.js";
export type { ClientOptions, Failure, Run, RunRef, RunStep, SignalRef, StartOptions } from "./client.js";
export type { Context, State } from "./context.js";
export type { Level, StopReason } from "./attempt.js";
export {
  ApiError,
  ContextError,
  FlowgateError,
  HandlerError,
  Stopped,
  Unavailable,
  WaitTimeout,
} from "./errors.js";
export { Worker } from "./worker.js";
export type { Handler, Logger, WorkerOptions } from "./worker.js";
