// The theme: light, dark or the system's. Loaded before the style sheet and without `defer`, so that a page is never drawn in
// the wrong one. It is kept in this browser.
"use strict";
const THEMES = ["system", "light", "dark"];
const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const theme = () => (THEMES.includes(stored()) ? stored() : "system");
const applyTheme = () => { document.documentElement.dataset.theme = theme(); };
applyTheme();

document.addEventListener("DOMContentLoaded", () => {
  const button = document.querySelector("[data-theme-switch]");
  if (!button) return;
  const label = () => { button.title = `Theme: ${theme()}`; button.setAttribute("aria-label", button.title); };
  button.addEventListener("click", () => {
    try { localStorage.setItem("theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]); } catch { return; }
    applyTheme();
    label();
  });
  addEventListener("storage", () => { applyTheme(); label(); });
  label();
  button.hidden = false;
});
