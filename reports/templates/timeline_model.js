// What one step's timeline shows: rows of pieces by device, what each piece is, where a time falls.
// Pieces of a row follow each other and are in order of start, so a search halves its way to them.
const timeline = (() => {
  const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
  const LONGEST = 240;

  // Names come from programs: what cannot be seen is spelled out, and what is endless is cut.
  const printable = (text) => {
    const cut = text.length <= LONGEST ? text : `${text.slice(0, 160)}…${text.slice(-79)}`;
    return cut.replace(INVISIBLE, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  };

  const grouped = (value, decimals) =>
    value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });

  // Digits behind the point that make four in all.
  const decimals = (magnitude) =>
    [[3, 10], [2, 100], [1, 1000]].find(([digits, bound]) => Number(magnitude.toFixed(digits)) < bound)?.[0] ?? 0;

  // As the rest of the page writes times: the largest unit that the rounded figure reaches, four digits.
  const time = (ns) => {
    for (const [size, unit, below] of [[1e9, "s", 1e6], [1e6, "ms", 1e3], [1e3, "µs", 1]]) {
      const part = Math.abs(ns) / below;
      if (Number(part.toFixed(below > 1 ? decimals(part) : 0)) * below >= size) {
        return `${grouped(ns / size, decimals(Math.abs(ns) / size))} ${unit}`;
      }
    }
    return `${ns.toFixed(0)} ns`;
  };

  const numbers = (column) => Float64Array.from(column);

  // Devices in the order of the drawing, each with its rows; a row is a range of pieces.
  const devicesOf = (data, pieces) => {
    const devices = [];
    const { rank, host, device, lane } = data;
    for (let at = 0; at < pieces; at++) {
      let last = devices.at(-1);
      if (!last || last.rank !== rank[at] || last.host !== host.codes[at] || last.device !== device[at]) {
        last = { rank: rank[at], host: host.codes[at], device: device[at], idle: [at, at], rows: [] };
        devices.push(last);
      }
      if (lane.names[lane.codes[at]] === "") {
        last.idle[1] = at + 1;
        continue;
      }
      const row = last.rows.at(-1);
      if (row && row.lane === lane.codes[at]) row.last = at + 1;
      else last.rows.push({ lane: lane.codes[at], name: printable(lane.names[lane.codes[at]]), first: at, last: at + 1 });
    }
    for (const each of devices) {
      each.name = each.rank >= 0 ? `rank ${each.rank}` : `device ${each.device}`;
      each.place = `${printable(host.names[each.host])}, device ${each.device}`;
    }
    return devices;
  };

  const model = (drawing, computing) => {
    const data = drawing.data;
    const pieces = data.start_ns.length;
    const start = numbers(data.start_ns);
    const end = numbers(data.duration_ns).map((length, at) => start[at] + length);
    const text = (column, at) => printable(data[column].names[data[column].codes[at]]);
    const metric = (name) => drawing.headline.find((each) => each.metric === name)?.value;
    const devices = devicesOf(data, pieces);
    for (const device of devices) device.compute = computing.get(device.rank) ?? 0;

    // The first of a range of pieces that ends behind a time: the others are all before it.
    const firstBehind = (first, last, at) => {
      let low = first;
      let high = last;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (end[middle] <= at) low = middle + 1;
        else high = middle;
      }
      return low;
    };

    // The piece of a range that covers a time, else the nearest within a tolerance; -1 for none.
    const pieceAt = (first, last, at, tolerance = 0) => {
      const behind = firstBehind(first, last, at);
      let found = -1;
      let least = tolerance;
      for (const near of [behind - 1, behind]) {
        if (near < first || near >= last) continue;
        const distance = Math.max(start[near] - at, at - end[near], 0);
        if (distance <= least) [found, least] = [near, distance];
      }
      return found;
    };

    // Time in which any of the hits runs, added over devices: a loop and its body count once.
    const timeOf = (hit) => {
      let sum = 0;
      for (const device of devices) {
        const first = device.idle[0];
        const places = [];
        for (let at = first; at < (device.rows.at(-1)?.last ?? device.idle[1]); at++) if (hit[at]) places.push(at);
        places.sort((a, b) => start[a] - start[b] || end[b] - end[a]);
        let until = -Infinity;
        for (const at of places) {
          sum += Math.min(data.shown_ns[at], Math.max(end[at] - Math.max(start[at], until), 0));
          until = Math.max(until, end[at]);
        }
      }
      return sum;
    };

    // Pieces whose op, kernel, scope or source line holds a text, and the time they take.
    const search = (wanted) => {
      const words = wanted.trim().toLowerCase();
      if (!words) return null;
      const columns = ["op", "kernel", "scope", "source"].map((name) => {
        const hits = data[name].names.map((each) => each.toLowerCase().includes(words));
        return (at) => hits[data[name].codes[at]];
      });
      const hit = new Uint8Array(pieces);
      let count = 0;
      for (let at = 0; at < pieces; at++) {
        if (!columns.some((column) => column(at))) continue;
        hit[at] = 1;
        count += 1;
      }
      return { hit, count, busy: timeOf(hit) };
    };

    const described = (at) => {
      const device = devices.find((each) => at >= each.idle[0] && at < (each.rows.at(-1)?.last ?? each.idle[1]));
      const row = device.rows.find((each) => at >= each.first && at < each.last);
      return {
        op: text("op", at),
        component: data.component.names[data.component.codes[at]],
        phase: text("phase", at),
        kernel: text("kernel", at),
        scope: text("scope", at),
        source: text("source", at),
        kind: text("kind", at),
        start_ns: start[at],
        duration_ns: end[at] - start[at],
        busy_ns: data.busy_ns[at],
        count: data.count[at],
        shown_ns: data.shown_ns[at],
        wait_ns: data.wait_ns[at],
        where: row ? `${device.name}, ${row.name}` : device.name,
        place: device.place,
      };
    };

    const rowOf = (at) => {
      for (const device of devices) {
        if (at >= device.idle[0] && at < device.idle[1]) return { device, row: null };
        const row = device.rows.find((each) => at >= each.first && at < each.last);
        if (row) return { device, row };
      }
      return null;
    };

    return {
      pieces, start, end, devices, search, described, rowOf, pieceAt, firstBehind,
      duration: metric("duration"),
      busy: data.busy_ns,
      count: data.count,
      wait: data.wait_ns,
      component: Int32Array.from(data.component.codes),
      components: data.component.names,
      phase: (at) => data.phase.names[data.phase.codes[at]],
      op: (at) => text("op", at),
      lanes: devices.reduce((sum, each) => sum + each.rows.length, 0),
    };
  };

  return { model, time, grouped, printable };
})();
