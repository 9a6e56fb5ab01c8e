document.getElementById("theme").addEventListener("click", theme.toggle);
theme.onChange(figures.redraw);
addEventListener("beforeprint", () => figures.drawAll());
