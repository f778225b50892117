// Light or dark: as the system says until the button is used; paper is always light.
const root = document.documentElement;
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const themed = [];
let chosen = null;
let printing = false;

const isDark = () => !printing && (chosen ?? prefersDark.matches);
const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

function applyTheme() {
  root.dataset.theme = isDark() ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", isDark());
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  themed.forEach((redraw) => redraw());
}

// Charts hold their colours, so they are drawn anew when those change.
function whenThemed(redraw) {
  themed.push(redraw);
}

function setUpTheme() {
  byId("theme").addEventListener("click", () => {
    chosen = !isDark();
    applyTheme();
  });
  prefersDark.addEventListener("change", applyTheme);
  window.addEventListener("beforeprint", () => { printing = true; applyTheme(); });
  window.addEventListener("afterprint", () => { printing = false; applyTheme(); });
  byId("print").addEventListener("click", () => window.print());
  applyTheme();
}
