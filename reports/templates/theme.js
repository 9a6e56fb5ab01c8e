"use strict";
// Runs before the first paint. The theme is the system's until the reader chooses one.
const theme = (() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  // A file opened from disk may have no storage: a choice then lasts as long as the page.
  let chosen = null;
  try { chosen = localStorage.getItem("moeprof-theme"); } catch { /* see above */ }
  const listeners = [];

  const apply = () => {
    root.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
    listeners.forEach((listener) => listener());
  };
  const toggle = () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("moeprof-theme", chosen); } catch { /* see above */ }
    apply();
  };
  system.addEventListener("change", apply);
  apply();
  return { toggle, onChange: (listener) => listeners.push(listener) };
})();
