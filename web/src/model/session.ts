/** Who looks at the page, and what they may do. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Scope, Session } from "../net/types";

export const SessionContext = createContext<Session | null>(null);

/** Why this may not be done here; nothing if it may. */
export function useForbidden(scope: Scope): string | undefined {
  const session = useContext(SessionContext);
  if (session === null || session.scopes.includes(scope)) return undefined;
  return `your token lacks the scope \`${scope}\``;
}

export function useSession(): Session | null {
  return useContext(SessionContext);
}
