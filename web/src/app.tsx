/** The frame of every page: who is there, where one is, and whether the connection stands. */

import { Component, type ComponentChildren } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { navigate, routeOf, usePlace, type Route } from "./model/route";
import { SessionContext } from "./model/session";
import { useTheme, type Theme } from "./model/theme";
import { call, get, whenUnauthorized } from "./net/api";
import { useConnection, useLiveWhile } from "./net/live";
import type { Session } from "./net/types";
import { Problem } from "./ui/basics";
import { Dialog } from "./ui/dialog";
import { Icon, Mark, type IconName } from "./ui/icons";
import { Toasts } from "./ui/toast";
import { DeadPage } from "./pages/dead";
import { DeploymentPage } from "./pages/deployment";
import { DeploymentsPage } from "./pages/deployments";
import { FlowPage } from "./pages/flow";
import { FlowsPage } from "./pages/flows";
import { HoldPage } from "./pages/hold";
import { InstancesPage } from "./pages/instances";
import { LoginPage } from "./pages/login";
import { OverviewPage } from "./pages/overview";
import { QueuesPage } from "./pages/queues";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { SchedulePage } from "./pages/schedule";
import { SchedulesPage } from "./pages/schedules";
import { SubscribersPage } from "./pages/subscribers";
import { MissingPage } from "./pages/missing";

interface Entry {
  name: string;
  path: string;
  icon: IconName;
  /** The key after `g` that goes there. */
  key: string;
}

const NAVIGATION: Entry[][] = [
  [
    { name: "Overview", path: "/", icon: "overview", key: "o" },
    { name: "Runs", path: "/runs", icon: "runs", key: "r" },
    { name: "Flows", path: "/flows", icon: "flows", key: "f" },
    { name: "Schedules", path: "/schedules", icon: "schedules", key: "s" },
  ],
  [
    { name: "Hold", path: "/hold", icon: "hold", key: "h" },
    { name: "Queues", path: "/queues", icon: "queues", key: "q" },
    { name: "Dead letters", path: "/dead", icon: "dead", key: "d" },
    { name: "Subscribers", path: "/subscribers", icon: "subscribers", key: "u" },
  ],
  [
    { name: "Instances", path: "/instances", icon: "instances", key: "i" },
    { name: "Deployments", path: "/deployments", icon: "deployments", key: "p" },
  ],
];

export function App() {
  const [session, setSession] = useState<Session | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const load = useCallback(() => {
    setError(null);
    get<Session>("/session").then(setSession, setError);
  }, []);
  useEffect(load, [load]);
  useEffect(
    () => whenUnauthorized(() => setSession((old) => (old ? { ...old, authenticated: false, login_required: true } : old))),
    [],
  );
  if (error && !session) {
    return (
      <main class="alone">
        <Mark />
        <Problem error={error} retry={load} />
      </main>
    );
  }
  if (!session) return <main class="alone" aria-busy="true" />;
  if (session.login_required && !session.authenticated) return <LoginPage onDone={load} />;
  return (
    <SessionContext.Provider value={session}>
      <Shell session={session} onLogout={() => void call("DELETE", "/session").then(load, load)} />
      <Toasts />
    </SessionContext.Provider>
  );
}

function Shell({ session, onLogout }: { session: Session; onLogout: () => void }) {
  const place = usePlace();
  const route = routeOf(place.path);
  const [menu, setMenu] = useState(false);
  const [keys, setKeys] = useState(false);
  useKeys(() => setKeys(true));
  useEffect(() => setMenu(false), [place.path]);
  // The page of a run follows that run, and a tab holds one connection.
  useLiveWhile(route.page !== "run");
  const navigation = <Navigation path={place.path} />;
  const foot = <Foot session={session} onLogout={onLogout} onKeys={() => setKeys(true)} />;
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>Skip to the page</a>
      <header class="topbar">
        <a class="brand" href="/"><Mark /><span>flowgate</span></a>
        <ConnectionMark />
        <button type="button" class="button quiet" aria-label="menu" onClick={() => setMenu(true)}>
          <Icon name="menu" />
        </button>
      </header>
      <aside class="sidebar">
        <a class="brand" href="/"><Mark /><span>flowgate</span></a>
        {navigation}
        {foot}
      </aside>
      {menu ? (
        <Dialog title="Menu" onClose={() => setMenu(false)}>
          {navigation}
          {foot}
        </Dialog>
      ) : null}
      {keys ? <KeysDialog onClose={() => setKeys(false)} /> : null}
      <main id="main" class="main" tabIndex={-1}>
        <Fence key={place.path}><Content route={route} /></Fence>
      </main>
    </div>
  );
}

function Content({ route }: { route: Route }) {
  useEffect(() => {
    document.title = titleOf(route) + " · flowgate";
  });
  switch (route.page) {
    case "overview":
      return <OverviewPage />;
    case "runs":
      return <RunsPage />;
    case "run":
      return <RunPage key={route.run} run={route.run} />;
    case "flows":
      return <FlowsPage />;
    case "flow":
      return <FlowPage key={route.flow} flow={route.flow} />;
    case "schedules":
      return <SchedulesPage />;
    case "schedule":
      return <SchedulePage key={route.name} name={route.name} />;
    case "hold":
      return <HoldPage />;
    case "queues":
      return <QueuesPage />;
    case "dead":
      return <DeadPage />;
    case "subscribers":
      return <SubscribersPage />;
    case "instances":
      return <InstancesPage />;
    case "deployments":
      return <DeploymentsPage />;
    case "deployment":
      return <DeploymentPage key={`${route.flow}/${route.deployment}`} flow={route.flow} deployment={route.deployment} />;
    case "missing":
      return <MissingPage />;
  }
}

function titleOf(route: Route): string {
  switch (route.page) {
    case "run":
      return "Run " + route.run.slice(0, 13);
    case "flow":
      return route.flow;
    case "schedule":
      return route.name;
    case "deployment":
      return `Deployment of ${route.flow}`;
    case "dead":
      return "Dead letters";
    case "missing":
      return "Not found";
    default:
      return (route.page[0] ?? "").toUpperCase() + route.page.slice(1);
  }
}

/** A mistake of ours in one page leaves the others usable. */
class Fence extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  override state = { error: null as Error | null };

  override componentDidCatch(error: Error): void {
    console.error(error);
    this.setState({ error });
  }

  override render() {
    if (!this.state.error) return this.props.children;
    const retry = () => this.setState({ error: null });
    return <Problem error={new Error("this page cannot be drawn: " + this.state.error.message)} retry={retry} />;
  }
}

function Navigation({ path }: { path: string }) {
  const first = "/" + (path.split("/")[1] ?? "");
  return (
    <nav class="navigation" aria-label="pages">
      {NAVIGATION.map((group, at) => (
        <ul key={at}>
          {group.map((entry) => (
            <li key={entry.path}>
              <a href={entry.path} aria-current={entry.path === first ? "page" : undefined}>
                <Icon name={entry.icon} />
                <span>{entry.name}</span>
              </a>
            </li>
          ))}
        </ul>
      ))}
    </nav>
  );
}

function Foot({ session, onLogout, onKeys }: { session: Session; onLogout: () => void; onKeys: () => void }) {
  return (
    <div class="foot">
      <ConnectionMark />
      <div class="foot-row">
        <ThemeSwitch />
        <button type="button" class="button quiet" title="keys" aria-label="keys" onClick={onKeys}>
          <Icon name="help" size={14} />
        </button>
        {session.login_required ? (
          <button type="button" class="button quiet" onClick={onLogout}>Log out</button>
        ) : null}
      </div>
      <p class="faint">{session.version} · {session.store}</p>
    </div>
  );
}

function ConnectionMark() {
  const connection = useConnection();
  const word = { open: "live", connecting: "connecting", lost: "connection lost, trying again", closed: "connecting" }[connection];
  return (
    <span class={`connection ${connection}`} role="status" aria-live="polite" data-connection={connection}>
      <span class="connection-dot" aria-hidden="true" />
      {word}
    </span>
  );
}

const THEMES: { theme: Theme; icon: IconName; name: string }[] = [
  { theme: "system", icon: "system", name: "as the system" },
  { theme: "light", icon: "sun", name: "light" },
  { theme: "dark", icon: "moon", name: "dark" },
];

function ThemeSwitch() {
  const [theme, setTheme] = useTheme();
  return (
    <div class="segments" role="group" aria-label="theme">
      {THEMES.map((each) => (
        <button
          key={each.theme}
          type="button"
          title={each.name}
          aria-label={each.name}
          aria-pressed={theme === each.theme}
          onClick={() => setTheme(each.theme)}
        >
          <Icon name={each.icon} size={14} />
        </button>
      ))}
    </div>
  );
}

function KeysDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        <div><dt><kbd>/</kbd></dt><dd>search runs</dd></div>
        {NAVIGATION.flat().map((entry) => (
          <div key={entry.key}><dt><kbd>g</kbd> <kbd>{entry.key}</kbd></dt><dd>{entry.name}</dd></div>
        ))}
        <div><dt><kbd>Esc</kbd></dt><dd>close a dialog</dd></div>
        <div><dt><kbd>?</kbd></dt><dd>this list</dd></div>
      </dl>
    </Dialog>
  );
}

/** `/` goes to the search, `g` and a letter to a page. */
function useKeys(onHelp: () => void): void {
  const help = useRef(onHelp);
  help.current = onHelp;
  useEffect(() => {
    let afterG = 0;
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.metaKey || event.ctrlKey || event.altKey || target.closest("input, textarea, select, dialog")) return;
      if (event.key === "/") {
        event.preventDefault();
        const search = document.querySelector<HTMLInputElement>("input[type=search]");
        if (search) search.focus();
        else navigate("/runs?focus=search");
        return;
      }
      if (event.key === "?") return help.current();
      if (event.key === "g") {
        afterG = event.timeStamp;
        return;
      }
      if (afterG > 0 && event.timeStamp - afterG < 1_500) {
        const entry = NAVIGATION.flat().find((each) => each.key === event.key);
        if (entry) navigate(entry.path);
      }
      afterG = 0;
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}
