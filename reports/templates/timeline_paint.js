// How a timeline is painted on a canvas: only what is in sight, and of many pieces in one pixel the
// part that fills most of it.
const timelinePaint = (() => {
  const AXIS = 24;
  const ROW = 17;
  const GAP = 8;
  const SEEN = 1.5;  // pixels from which a piece is drawn alone
  const { theme, striped, laneName, isDark, ticks, fitted, sized } = timelinePen;

  // Bands from top to bottom: a device's own, then its lanes where it is open.
  const laidOut = (devices, isOpen) => {
    const bands = [];
    let top = 4;
    for (const device of devices) {
      const open = isOpen(device);
      bands.push({ device, row: null, top, isOpen: open });
      top += ROW;
      if (open) {
        for (const row of device.rows) {
          bands.push({ device, row, top, isOpen: open });
          top += ROW;
        }
      }
      top += open ? GAP : GAP / 2;
    }
    return { bands, height: top };
  };

  const painter = (model, style) => {
    const colours = model.components.map((name) => style.components[name]);
    const FAINT = 0.16;
    const LEVELS = 4;

    // What a pixel can show: a component in a phase, at work or waiting, lit or not.
    const kinds = [];
    const kindOf = new Int32Array(model.pieces);
    {
      const places = new Map();
      for (let piece = 0; piece < model.pieces; piece++) {
        const name = `${model.component[piece]} ${model.phase(piece)}`;
        if (!places.has(name)) {
          places.set(name, kinds.length);
          kinds.push({ component: model.component[piece], phase: model.phase(piece) });
        }
        kindOf[piece] = places.get(name);
      }
    }
    let cover = new Float32Array(0);

    // A loop gives way to its body, and what is not lit to what is.
    const weightOf = (piece, isLit) => (isLit ? 1 : 1e-2) * (colours[model.component[piece]].isHatched ? 1e-3 : 1);

    // Work's share of the time that a piece spans: 1 unless short pieces were merged in it.
    const density = (piece) => {
      const length = model.end[piece] - model.start[piece];
      return model.count[piece] > 1 && length > 0 ? model.busy[piece] / length : 1;
    };

    const rectangle = (at, kind, isWaiting, alpha, from, to, top, height) => {
      const { context, colour, patterns } = at;
      const drawn = colours[kind.component];
      const wide = to - from;
      context.globalAlpha = alpha * (drawn.isHatched ? at.faint : 1);
      context.fillStyle = drawn.colour;
      context.fillRect(from, top, wide, height);
      if (wide < 6) return;
      const pattern = drawn.isHatched ? patterns.hatched : patterns[kind.phase];
      if (pattern) {
        context.fillStyle = pattern;
        context.fillRect(from, top, wide, height);
      }
      if (isWaiting) pale(at, alpha, from, to, top, height);
    };
    const pale = ({ context, colour }, alpha, from, to, top, height) => {
      context.fillStyle = colour.card;
      context.globalAlpha = alpha * 0.62;
      context.fillRect(from, top + 2, to - from, height - 4);
    };

    const label = ({ context, colour }, name, drawn, isLit, from, to, top, height) => {
      context.globalAlpha = isLit ? 1 : 0.3;
      context.font = `11px ${colour.font}`;
      const words = fitted(context, name, to - from - 10);
      if (!words) return;
      context.fillStyle = drawn.isHatched ? colour.card : drawn.colour;
      context.fillRect(from + 3, top + 2, context.measureText(words).width + 4, height - 4);
      context.fillStyle = drawn.isHatched ? colour.ink : drawn.ink;
      context.fillText(words, from + 5, top + height / 2 + 0.5);
    };

    // Pieces that no pixel can show alone: of each pixel what fills most of it, as few rectangles
    // as there are changes.
    const raster = (at, ranges, top, height, least) => {
      const { view, left, width, isLit } = at;
      const pixels = Math.ceil(width);
      const wide = kinds.length * 4;
      if (cover.length < pixels * wide) cover = new Float32Array(pixels * wide);
      else cover.fill(0, 0, pixels * wide);
      const scale = width / (view.end - view.start);
      const add = (from, to, key, weight) => {
        for (let pixel = Math.floor(from); pixel < to && pixel < pixels; pixel++) {
          cover[pixel * wide + key] += weight * Math.max(Math.min(to, pixel + 1) - Math.max(from, pixel), 0.01);
        }
      };
      for (const [first, last] of ranges) {
        for (let piece = model.firstBehind(first, last, view.start); piece < last && model.start[piece] < view.end; piece++) {
          const from = (Math.max(model.start[piece], view.start) - view.start) * scale;
          const to = (Math.min(model.end[piece], view.end) - view.start) * scale;
          if (to - from >= least) continue;
          const lit = isLit(piece);
          const key = kindOf[piece] * 4 + (lit ? 1 : 0);
          const weight = weightOf(piece, lit) * density(piece);
          const waits = (Math.min(model.start[piece] + Math.max(model.wait[piece], 0), view.end) - view.start) * scale;
          if (model.count[piece] === 1 && waits > from) {
            add(from, waits, key + 2, weight);
            add(waits, to, key, weight);
          } else {
            add(from, Math.max(to, from + 1e-6), key, weight);
          }
        }
      }
      let [run, begun] = [-1, 0];
      const end = (pixel) => {
        if (run >= 0) {
          const key = Math.floor(run / LEVELS);
          const alpha = (key & 1 ? 1 : FAINT) * (0.4 + (0.6 * ((run % LEVELS) + 1)) / LEVELS);
          const [from, to] = [left + begun, left + pixel];
          const { component } = kinds[key >> 2];
          rectangle(at, kinds[key >> 2], (key & 2) > 0, alpha, from, to, top, height);
          if (to - from > 60 && height > 10) {
            label(at, `${colours[component].name}${key & 2 ? " waits" : ""}`, colours[component], (key & 1) > 0, from, to, top, height);
          }
        }
      };
      for (let pixel = 0; pixel < pixels; pixel++) {
        let most = -1;
        let largest = 0;
        let sum = 0;
        for (let key = 0; key < wide; key++) {
          const filled = cover[pixel * wide + key];
          if (!filled) continue;
          sum += filled / (key & 1 ? 1 : 1e-2) / (colours[kinds[key >> 2].component].isHatched ? 1e-3 : 1);
          if (filled > largest) [most, largest] = [key, filled];
        }
        const level = Math.max(Math.ceil(Math.min(sum, 1) * LEVELS) - 1, 0);
        const next = most < 0 ? -1 : most * LEVELS + level;
        if (next === run) continue;
        end(pixel);
        [run, begun] = [next, pixel];
      }
      end(pixels);
      at.context.globalAlpha = 1;
    };

    // The pieces of one row that are wide enough to be seen alone, with their names.
    const single = (at, first, last, top, height, least) => {
      const { context, view, left, width, isLit } = at;
      const scale = width / (view.end - view.start);
      for (let piece = model.firstBehind(first, last, view.start); piece < last && model.start[piece] < view.end; piece++) {
        const from = left + (Math.max(model.start[piece], view.start) - view.start) * scale;
        const to = left + (Math.min(model.end[piece], view.end) - view.start) * scale;
        if (to - from < least) continue;
        const alpha = isLit(piece) ? 1 : FAINT;
        const drawn = colours[model.component[piece]];
        const high = Math.max(Math.round(height * density(piece)), 2);
        rectangle(at, kinds[kindOf[piece]], false, alpha, from, to - (to - from > 3 ? 0.6 : 0), top + height - high, high);
        const until = left + (Math.min(model.start[piece] + Math.max(model.wait[piece], 0), view.end) - view.start) * scale;
        if (model.count[piece] === 1 && until > from + 1) pale(at, alpha, from, until, top, height);
        if (to - from <= 46 || high < height) continue;
        label(at, model.op(piece), drawn, isLit(piece), from, to, top, height);
      }
      context.globalAlpha = 1;
    };
    const row = (at, first, last, top, height) => {
      raster(at, [[first, last]], top, height, SEEN);
      single(at, first, last, top, height, SEEN);
    };

    let held = null;
    const patternsOn = (context, colour) => {
      if (held?.colour !== colour.card) {
        held = { colour: colour.card, hatched: striped(context, "/", colour.card) };
        for (const [phase, pattern] of Object.entries(style.phases)) {
          if (pattern) held[phase] = striped(context, pattern, "rgba(255,255,255,.42)");
        }
      }
      return held;
    };

    const main = (canvas, state, isPrinted) => {
      const { width, height, scroll, gutter, bands, view, chosen, drag } = state;
      const context = sized(canvas, width, height);
      const colour = theme(isPrinted);
      const plot = { left: gutter, width: width - gutter };
      const patterns = patternsOn(context, colour);
      const at = { context, view, colour, patterns, isLit: state.isLit, faint: isDark(colour.card) ? 0.4 : 1, ...plot };
      const x = (stamp) => gutter + ((stamp - view.start) / (view.end - view.start)) * plot.width;
      context.textBaseline = "middle";

      context.strokeStyle = colour.rule;
      context.lineWidth = 1;
      const stamps = ticks(view.start, view.end, plot.width / 96);
      for (const [stamp] of stamps) {
        context.beginPath();
        context.moveTo(Math.round(x(stamp)) + 0.5, AXIS);
        context.lineTo(Math.round(x(stamp)) + 0.5, height);
        context.stroke();
      }
      context.save();
      context.beginPath();
      context.rect(0, AXIS, width, height - AXIS);
      context.clip();
      for (const band of bands) {
        const top = AXIS + band.top - scroll;
        if (top + ROW < AXIS || top > height) continue;
        const { device, row: own } = band;
        context.save();
        context.beginPath();
        context.rect(gutter, top, plot.width, ROW);
        context.clip();
        if (own) {
          row(at, own.first, own.last, top + 1, ROW - 2);
        } else if (band.isOpen) {
          row(at, ...device.idle, top + 3, ROW - 6);
        } else {
          const ranges = device.rows.map((each) => [each.first, each.last]);
          if (ranges.length === 1) row(at, ...ranges[0], top + 1, ROW - 2);
          else raster(at, ranges, top + 1, ROW - 2, Infinity);
          raster(at, [device.idle], top + ROW - 4, 3, Infinity);
        }
        context.restore();
        context.font = own ? `11px ${colour.font}` : `600 12px ${colour.font}`;
        context.fillStyle = own ? colour.soft : colour.ink;
        const words = own ? laneName(own.name, gutter < 120) : `${band.isOpen ? "▾" : "▸"} ${device.name}`;
        const indent = own ? 18 : 4;
        const named = fitted(context, words, gutter - indent - 6);
        context.fillText(named, indent, top + ROW / 2 + 0.5);
        if (!own && gutter > 120) {
          const after = indent + context.measureText(named).width + 7;
          context.font = `11px ${colour.font}`;
          context.fillStyle = colour.soft;
          context.fillText(fitted(context, device.place, gutter - after - 6), after, top + ROW / 2 + 0.5);
        }
      }
      if (chosen >= 0) {
        const place = model.rowOf(chosen);
        const band = bands.find((each) => each.device === place.device && each.row === place.row)
          ?? bands.find((each) => each.device === place.device && each.row === null);
        const [from, to] = [x(model.start[chosen]), x(model.end[chosen])];
        context.beginPath();
        context.rect(gutter, AXIS, plot.width, height - AXIS);
        context.clip();
        context.strokeStyle = colour.ink;
        context.lineWidth = 2;
        context.strokeRect(from - 1, AXIS + band.top - scroll, Math.max(to - from, 1) + 2, ROW);
      }
      context.restore();

      context.fillStyle = colour.card;
      context.fillRect(0, 0, width, AXIS);
      context.font = `11px ${colour.font}`;
      context.fillStyle = colour.soft;
      for (const [stamp, label] of stamps) {
        const wide = context.measureText(label).width;
        context.fillText(label, Math.min(Math.max(x(stamp) - wide / 2, gutter), width - wide), AXIS / 2);
      }
      context.fillStyle = colour.rule;
      context.fillRect(0, AXIS - 1, width, 1);
      context.fillRect(gutter - 1, 0, 1, height);
      if (drag) {
        const [from, to] = [Math.min(...drag), Math.max(...drag)];
        context.globalAlpha = 0.18;
        context.fillStyle = colour.link;
        context.fillRect(x(from), AXIS, x(to) - x(from), height - AXIS);
        context.globalAlpha = 1;
        context.font = `600 12px ${colour.font}`;
        context.fillStyle = colour.ink;
        context.fillText(timeline.time(to - from), Math.max(x(from) + 4, gutter), AXIS + 9);
      }
    };

    return { main, overview: timelineStrip(model, colours, style.span) };
  };

  return { painter, laidOut, AXIS, ROW };
})();
