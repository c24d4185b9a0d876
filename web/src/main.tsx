import { render } from "preact";
import { App } from "./app";
import { applyTheme, storedTheme } from "./model/theme";
import { takeOverLinks } from "./model/route";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/parts.css";
import "./styles/overlays.css";
import "./styles/tables.css";
import "./styles/run.css";
import "./styles/pages.css";
import "./styles/deployments.css";

applyTheme(storedTheme());
takeOverLinks();

const root = document.getElementById("app");
if (root) render(<App />, root);
