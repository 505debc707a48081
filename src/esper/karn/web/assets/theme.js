// Dark or light: by preference, by choice, remembered.

import { byId } from "esper/format";

export class Theme {
  constructor(redraw) {
    this.redraw = redraw;
    byId("theme").addEventListener("click", () => this.toggle());
    this.set(firstTheme());
  }

  set(name) {
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = name === "dark" ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", name === "dark" ? "Light theme" : "Dark theme");
    try {
      localStorage.setItem("esper-theme", name);
    } catch {
      // A page opened from disk may have no storage; the theme then lasts as long as the page.
    }
    this.redraw();
  }

  toggle() {
    this.set(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  }
}

function firstTheme() {
  let stored = null;
  try {
    stored = localStorage.getItem("esper-theme");
  } catch {
    stored = null;
  }
  return stored ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
}
