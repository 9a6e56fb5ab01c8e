// The timelines of the page: each is drawn when it comes near the screen, follows the address and
// the theme, and is whole on paper.
// `timelines` holds one entry per timeline that was drawn; its `state()` is what a test reads.
const timelines = [];
(() => {
  const LINK = /^#(.+)@(\d+)-(\d+)$/;

  const made = (box) => {
    const style = JSON.parse(box.querySelector("script").textContent);
    const from = documents.get();
    const drawing = from.drawings.one_step;
    const step = drawing.headline.find((each) => each.metric === "step")?.value ?? -1;
    const computing = new Map(
      (from.analyses.timeline?.rows ?? []).filter((row) => row.step === step).map((row) => [row.rank, row.compute_ns]),
    );
    const model = timeline.model(drawing, computing);
    const stage = timelineView(box, model, style);
    const tip = timelineTip(stage);
    const walk = timelineWalk(stage, tip);
    timelineKeys(stage, walk);
    timelinePointer(stage, tip, walk.choose);
    const { pane, view, shown, paint, plan, arrange, show } = stage;

    new ResizeObserver(plan).observe(pane);
    theme.onChange(plan);
    addEventListener("beforeprint", () => paint(true));
    addEventListener("afterprint", plan);
    const follow = () => {
      const [, section, start, end] = LINK.exec(location.hash) ?? [];
      if (section === style.section && Number(end) > Number(start)) show(Number(start), Number(end), false);
    };
    addEventListener("hashchange", follow);
    follow();
    arrange();
    paint();
    timelines.push({
      state: () => ({
        ...view, chosen: shown.chosen, rows: stage.bands().length, pieces: model.pieces, gutter: stage.gutter(),
        bands: stage.bands().map((band) => ({ top: band.top + timelinePaint.AXIS - pane.scrollTop, device: band.device.name, lane: band.row?.name ?? null })),
        hits: shown.hits && { count: shown.hits.count, busy: shown.hits.busy },
      }),
      described: (piece) => model.described(piece),
      paint,
      show,
    });
  };

  const draw = (box) => {
    if (box.dataset.drawn) return;
    try {
      made(box);
    } catch (error) {
      box.classList.add("failed");
      box.textContent = `This browser cannot draw the timeline (${error.message}). The table holds its figures.`;
    }
  };

  const boxes = [...document.querySelectorAll(".timeline")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "300px" });
  boxes.forEach((box) => near.observe(box));
  addEventListener("beforeprint", () => boxes.forEach(draw));

  // A link with a stretch of time names no element: the section is found here.
  const [, section] = LINK.exec(location.hash) ?? [];
  if (section) {
    const linked = boxes.find((box) => document.getElementById(section)?.contains(box));
    if (linked) {
      draw(linked);
      linked.scrollIntoView({ block: "center", behavior: "instant" });
    }
  }
  timelines.drawAll = () => boxes.forEach(draw);
})();
