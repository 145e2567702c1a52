// Starts the page: draws what its data hold, and serves the buttons.

function draw(data) {
  if (data.actions) Plots.act(data.actions);
  if (data.charts) Plots.add(data.charts);
  if (data.heat) Heat.apply(data.heat);
}

function copyFrom(button) {
  const text = button.parentElement.querySelector("pre").textContent;
  const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
  const select = () => {
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("pre"));
    const selection = getSelection();
    selection.removeAllRanges(); selection.addRange(range);
    if (document.execCommand("copy")) done();
  };
  if (navigator.clipboard && isSecureContext) navigator.clipboard.writeText(text).then(done, select); else select();
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
  if (Heat.map) Heat.map.draw();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("copy")) copyFrom(button);
  if (button.id === "theme") switchTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (Heat.map) Heat.map.draw(); });

// Paper is light: the heat map is the one picture whose colours are not the style sheet's.
let themeOnScreen;
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  themeOnScreen = document.documentElement.dataset.theme;
  setTheme("light");
});
addEventListener("afterprint", () => setTheme(themeOnScreen));

const DATA = JSON.parse(document.getElementById("data").textContent);
draw(DATA);
