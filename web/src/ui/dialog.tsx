/** Dialogs: the browser keeps the focus inside and closes them with Esc. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Button, Problem } from "./basics";
import { Icon } from "./icons";

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  // Not after the next frame: a key that is pressed until then would go to the page below.
  useLayoutEffect(() => {
    const element = dialog.current;
    if (!element) return;
    const before = document.activeElement as HTMLElement | null;
    element.showModal();
    // Whoever opens a dialog wants to write or to decide, and not to close it at once.
    const first = element.querySelector<HTMLElement>("form input, form textarea, form select, form button, nav a");
    first?.focus();
    return () => {
      element.close();
      before?.focus?.();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={props.wide ? "dialog wide" : "dialog"}
      aria-label={props.title}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) props.onClose();
      }}
    >
      <div class="dialog-body">
        <header class="dialog-head">
          <h2>{props.title}</h2>
          <button type="button" class="copy" aria-label="close" onClick={props.onClose}>
            <Icon name="close" />
          </button>
        </header>
        {props.children}
      </div>
    </dialog>
  );
}

/** A dialog that does one thing: it says what, does it when told, and shows what went wrong. */
export function ActionDialog(props: {
  title: string;
  action: string;
  kind?: "primary" | "danger";
  children?: ComponentChildren;
  disabled?: boolean;
  wide?: boolean;
  /** It stays open after it was done: something comes next. */
  stays?: boolean;
  act: () => Promise<void>;
  onClose: () => void;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy || props.disabled) return;
    setBusy(true);
    setError(null);
    try {
      await props.act();
      if (props.stays) setBusy(false);
      else props.onClose();
    } catch (failed) {
      setError(failed as Error);
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose} wide={props.wide ?? false}>
      <form class="form" onSubmit={(event) => void submit(event)}>
        {props.children}
        {error ? <Problem error={error} /> : null}
        <footer class="dialog-foot">
          <Button onClick={props.onClose}>Close</Button>
          <Button type="submit" kind={props.kind ?? "primary"} disabled={busy || (props.disabled ?? false)}>
            {props.action}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

export function Field(props: { label: string; hint?: ComponentChildren; children: ComponentChildren }) {
  return (
    <label class="field">
      <span class="field-label">{props.label}</span>
      {props.children}
      {props.hint ? <span class="field-hint">{props.hint}</span> : null}
    </label>
  );
}

/** A text field that holds JSON. */
export function JsonField(props: { label: string; text: string; onText: (text: string) => void; mistakes: string[]; hint?: ComponentChildren; rows?: number }) {
  return (
    <Field label={props.label} hint={props.hint}>
      <textarea
        class="mono"
        rows={props.rows ?? 8}
        spellcheck={false}
        aria-invalid={props.mistakes.length > 0}
        value={props.text}
        onInput={(event) => props.onText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if ((event.metaKey || event.ctrlKey) && event.key === "Enter") event.currentTarget.form?.requestSubmit();
        }}
      />
      {props.mistakes.slice(0, 4).map((mistake) => (
        <span key={mistake} class="field-mistake">{mistake}</span>
      ))}
    </Field>
  );
}
