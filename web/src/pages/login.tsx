import { useState } from "preact/hooks";
import { call } from "../net/api";
import { Button, Problem } from "../ui/basics";
import { Field } from "../ui/dialog";
import { Mark } from "../ui/icons";

export function LoginPage({ onDone }: { onDone: () => void }) {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await call("POST", "/session", { token: token.trim() });
      onDone();
    } catch (failed) {
      setError(failed as Error);
    }
    setBusy(false);
  };
  return (
    <main class="alone">
      <form class="login form" onSubmit={(event) => void submit(event)}>
        <div class="brand"><Mark /><span>flowgate</span></div>
        <Field label="Token" hint="One of those in the settings of this instance. The browser keeps it in a cookie that no script can read.">
          <input
            type="password"
            class="mono"
            autocomplete="current-password"
            autofocus
            required
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
        </Field>
        {error ? <Problem error={error} /> : null}
        <Button type="submit" kind="primary" disabled={busy || token.trim() === ""}>Log in</Button>
      </form>
    </main>
  );
}
