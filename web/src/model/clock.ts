/** What time it is at the server, and who wants to know when it goes on. */

import { useEffect, useState } from "preact/hooks";

let offset = 0;

/** The server's clock counts: this machine's may be wrong by minutes. */
export function setServerNow(now: string): void {
  const at = Date.parse(now);
  if (!Number.isFinite(at)) return;
  const next = at - Date.now();
  // Jitter of the network is not worth a jump of every time on the page.
  if (Math.abs(next - offset) > 1_500) offset = next;
}

export function serverNow(): number {
  return Date.now() + offset;
}

const tickers = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

function onTick(ticker: () => void): () => void {
  tickers.add(ticker);
  timer ??= setInterval(() => {
    if (!document.hidden) for (const each of tickers) each();
  }, 1_000);
  return () => {
    tickers.delete(ticker);
    if (tickers.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

/** A text that depends on the time: the component is drawn again only when the text changes. */
export function useTicking(text: (now: number) => string, ticks = true): string {
  const [, setShown] = useState("");
  useEffect(() => {
    if (!ticks) return;
    return onTick(() => setShown(text(serverNow())));
  });
  return text(serverNow());
}
