/** Light or dark: as the system says, unless somebody chose. */

import { useState } from "preact/hooks";

export type Theme = "system" | "light" | "dark";

const KEY = "flowgate.theme";

export function storedTheme(): Theme {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system";
  }
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

export function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState(storedTheme);
  return [
    theme,
    (next) => {
      try {
        if (next === "system") localStorage.removeItem(KEY);
        else localStorage.setItem(KEY, next);
      } catch {
        // Without storage the choice lasts as long as the page.
      }
      applyTheme(next);
      setTheme(next);
    },
  ];
}
