// What a timeline is written and painted with: the page's colours, stripes, round stamps, names that fit.
const timelinePen = (() => {
  const LIGHT = { ink: "#000", soft: "#444", rule: "#ccc", card: "#fff", wash: "#f4f4f4", link: "#000" };

  const theme = (isPrinted) => {
    const css = getComputedStyle(document.documentElement);
    const value = (name) => css.getPropertyValue(`--${name}`).trim();
    const colours = isPrinted ? LIGHT
      : Object.fromEntries(Object.keys(LIGHT).map((name) => [name, value(name)]));
    return { ...colours, font: getComputedStyle(document.body).fontFamily };
  };

  // Stripes are drawn over a colour, so that neither phase nor component hides the other.
  const striped = (context, pattern, stroke) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = stroke;
    pen.lineWidth = 1.2;
    const line = (...points) => {
      pen.beginPath();
      pen.moveTo(points[0], points[1]);
      pen.lineTo(points[2], points[3]);
      pen.stroke();
    };
    if (pattern === "/" || pattern === "x") for (const shift of [-8, 0, 8]) line(shift, 8, shift + 8, 0);
    if (pattern === "x") for (const shift of [-8, 0, 8]) line(shift, 0, shift + 8, 8);
    if (pattern === "-") line(0, 4, 8, 4);
    return context.createPattern(tile, "repeat");
  };

  // In the margin a stream is named without the list of what it does; the tooltip has it all.
  const laneName = (name, isNarrow) => {
    const brief = name.replace(/\((?!\d+\))[^)]*\)/, "").trim() || name;
    return isNarrow ? brief.replace(/^Stream\s*/, "") : brief;
  };

  const isDark = (colour) => {
    const hex = colour.length === 4 ? [...colour.slice(1)].map((digit) => digit + digit).join("") : colour.slice(1);
    const [red, green, blue] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
  };

  // Round stamps for the axis, at most so many, in one unit.
  const ticks = (from, to, most) => {
    const least = (to - from) / Math.max(most, 1);
    const size = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((times) => times * size).find((each) => each >= least);
    const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([each]) => to >= each) ?? [1, "ns"];
    const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    const found = [];
    for (let at = Math.ceil(from / step); at * step <= to; at++) {
      found.push([at * step, `${timeline.grouped((at * step) / unit, decimals)} ${name}`]);
    }
    return found;
  };

  const fitted = (context, words, width) => {
    if (context.measureText(words).width <= width) return words;
    let low = 0;
    let high = words.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${words.slice(0, middle)}…`).width <= width) low = middle;
      else high = middle - 1;
    }
    return low > 1 ? `${words.slice(0, low)}…` : "";
  };

  // A canvas of a size in CSS pixels, sharp on every screen.
  const sized = (canvas, width, height) => {
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  };

  return { theme, striped, laneName, isDark, ticks, fitted, sized };
})();
