// Figures are drawn when they come near the screen; plotly.js is unpacked for the first of them.
const figures = (() => {
  const plots = [...document.querySelectorAll("figure.plot")];
  const specs = new Map();
  // Read when first drawn: plotly clears the figure, and the page need not wait for all of them.
  const specOf = (plot) => {
    if (!specs.has(plot)) specs.set(plot, JSON.parse(plot.querySelector("script").textContent));
    return specs.get(plot);
  };
  const config = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  // Plotly's buttons do nothing for a flame figure, and would lie over the path on its top.
  const configOf = (data) => data[0]?.type === "icicle" ? { ...config, displayModeBar: false } : config;
  let plotly = null;

  const unpack = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    return window.Plotly;
  };

  // Where the screen is narrow the bars need the room that long names would take.
  const labels = (layout, plot) =>
    layout.meta?.narrow && plot.clientWidth < 560 ? { ticktext: layout.meta.narrow, tickfont: { size: 11 } } : {};

  // Keys above or below stand in columns as wide as the longest; each line past the first needs room.
  const roomForKeys = (layout, plot, data) => {
    const { orientation, y = 1 } = layout.legend ?? {};
    const [isAbove, isBelow] = [y >= 1, y < 0];
    if (!layout.showlegend || orientation !== "h" || !(isAbove || isBelow)) return {};
    const keys = data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name.length);
    const columns = Math.max(1, Math.floor(plot.clientWidth / (55 + 7.5 * Math.max(...keys, 0))));
    const more = 20 * Math.max(0, Math.ceil(keys.length / columns) - 1);
    if (isBelow) return { height: layout.height + more }; // plotly.js makes the room below
    return { height: layout.height + more, margin: { ...layout.margin, t: layout.margin.t + more } };
  };

  // Colours of text and lines are the page's own, so a figure follows its theme.
  const themed = (layout, plot, data) => {
    const css = getComputedStyle(document.documentElement);
    const [ink, soft, rule, card] = ["--ink", "--soft", "--rule", "--card"].map((name) => css.getPropertyValue(name).trim());
    const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: rule, color: soft, fixedrange: false };
    const names = Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
    const axes = Object.fromEntries(names.map((name) => [name,
      { ...axis, ...layout[name], title: { ...layout[name].title, font: { size: 13 } } }]));
    return {
      ...layout,
      ...roomForKeys(layout, plot, data),
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
      hoverlabel: { bgcolor: card, bordercolor: soft, font: { color: ink }, align: "left" },
      ...axes,
      yaxis: { ...axes.yaxis, ...labels(layout, plot) },
    };
  };

  // Colour scales are made for one background: a trace that has one for dark carries both.
  const coloured = (data) => document.documentElement.dataset.theme !== "dark" ? data
    : data.map((trace) => trace.meta?.dark ? { ...trace, colorscale: trace.meta.dark } : trace);

  const draw = async (plot) => {
    plotly ??= unpack();
    try {
      const spec = specOf(plot);
      await (await plotly).react(plot, coloured(spec.data), themed(spec.layout, plot, spec.data), configOf(spec.data));
      plot.dataset.drawn = document.documentElement.dataset.theme;
    } catch (error) {
      plot.classList.add("failed");
      plot.textContent = `This browser cannot draw the figure (${error.message}). The table holds its numbers.`;
    }
  };

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((entry) => entry.isIntersecting)) {
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });
  plots.forEach((plot) => near.observe(plot));

  return {
    // Those that are drawn, in the colours of the page, and in its width where that has changed.
    redraw: (isResized = false) => Promise.all(plots.filter((plot) => plot.dataset.drawn).map(async (plot) => {
      await draw(plot);
      if (isResized && window.Plotly) await window.Plotly.Plots.resize(plot);
    })),
    drawAll: () => Promise.all(plots.filter((plot) => !plot.dataset.drawn).map(draw)),
  };
})();
