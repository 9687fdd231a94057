// Light or dark: as the system has it, until the reader says otherwise.
const wantsDark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

try {
  const chosen = localStorage.getItem("fedexperts-theme");
  if (chosen) setTheme(chosen);
} catch { /* a browser that keeps nothing for files */ }

document.getElementById("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || (wantsDark.matches ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  setTheme(next);
  try { localStorage.setItem("fedexperts-theme", next); } catch { /* as above */ }
});
