/** Short words about what was done. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Icon } from "./icons";

interface Toast {
  number: number;
  text: ComponentChildren;
  bad: boolean;
}

const SHOWN_MS = 6_000;
const SHOWN_MAX = 3;

let last = 0;
let toasts: Toast[] = [];
const listeners = new Set<() => void>();

function set(next: Toast[]): void {
  toasts = next;
  for (const listener of listeners) listener();
}

export function toast(text: ComponentChildren, bad = false): void {
  last += 1;
  const number = last;
  set([...toasts, { number, text, bad }].slice(-SHOWN_MAX));
  setTimeout(() => dismiss(number), SHOWN_MS);
}

function dismiss(number: number): void {
  set(toasts.filter((each) => each.number !== number));
}

export function Toasts() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((count) => count + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.map((each) => (
        <div key={each.number} class={each.bad ? "toast bad" : "toast"}>
          <span>{each.text}</span>
          <button type="button" class="copy" aria-label="dismiss" onClick={() => dismiss(each.number)}>
            <Icon name="close" size={13} />
          </button>
        </div>
      ))}
    </div>
  );
}
