// Rules of the page, evaluated in the page: each returns a description of its violations.
(() => {
  const isShown = (node) => node.checkVisibility?.({ visibilityProperty: true, opacityProperty: true }) && node.getClientRects().length > 0;
  const nameOf = (node) => `${node.tagName.toLowerCase()}${node.id ? "#" + node.id : ""}${node.classList?.length ? "." + [...node.classList].join(".") : ""}`;
  const words = (node) => (node.textContent ?? "").trim().slice(0, 40);

  const channel = (value) => { const part = value / 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (color) => { const parts = color.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0]; return [parts[0], parts[1], parts[2], parts[3] ?? 1]; };
  const over = ([r, g, b, a], [br, bg, bb]) => [r * a + br * (1 - a), g * a + bg * (1 - a), b * a + bb * (1 - a), 1];
  const contrast = (one, other) => { const [low, high] = [luminance(one), luminance(other)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
  function background(node) {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color[3] > 0) layers.push(color);
      if (color[3] >= 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  }
  const leaves = (root) => {
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const parent = node.parentElement;
      if (!node.data.trim() || !parent || ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION", "TITLE", "TEMPLATE"].includes(parent.tagName.toUpperCase())) continue;
      if (isShown(parent)) found.push([node, parent]);
    }
    return found;
  };

  function lowContrast() {
    return leaves(document.body).flatMap(([node, parent]) => {
      const style = getComputedStyle(parent);
      const isSvg = parent instanceof SVGElement;
      const ink = parse(isSvg ? style.fill : style.color);
      // Words on a drawn bar stand on its fill, which the drawing has to choose; the rest on the page.
      if (isSvg && parent.closest(".bars, .point, .waterfalllayer, #lanes")) return [];
      const behind = background(isSvg ? parent.closest("div") : parent);
      const size = parseFloat(style.fontSize);
      const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const ratio = contrast(over(ink, behind), behind);
      return ratio < (isLarge ? 3 : 4.5) ? [`${nameOf(parent)} "${words(parent)}" ${ratio.toFixed(2)}`] : [];
    });
  }

  function unlabelled() {
    const broken = [];
    for (const node of document.querySelectorAll("button, a[href], input, select, textarea, summary, [role=img], dialog, [tabindex='0'], progress")) {
      if (!isShown(node)) continue;
      const named = node.getAttribute("aria-label") || document.getElementById(node.getAttribute("aria-labelledby"))?.textContent
        || (node.labels?.length ? node.labels[0].textContent : "") || (/^(BUTTON|A|SUMMARY|DIALOG)$/.test(node.tagName) ? node.textContent : "");
      if (!named?.trim()) broken.push(`${nameOf(node)} has no name`);
    }
    for (const node of document.querySelectorAll("section")) {
      if (!document.getElementById(node.getAttribute("aria-labelledby"))) broken.push(`${nameOf(node)} has no heading`);
    }
    return broken;
  }

  function structure() {
    const broken = [];
    const ids = [...document.querySelectorAll("body [id]")].filter((node) => !node.closest("svg")).map((node) => node.id);
    for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) broken.push(`id ${id} twice`);
    if (!document.documentElement.lang) broken.push("no language");
    if (document.querySelectorAll("h1").length !== 1) broken.push("not exactly one h1");
    if (document.querySelectorAll("main").length !== 1) broken.push("not exactly one main");
    if (!document.title) broken.push("no title");
    return broken;
  }

  function clipped() {
    const broken = [];
    if (document.documentElement.scrollWidth > innerWidth) broken.push(`page is ${document.documentElement.scrollWidth} wide`);
    for (const [node, parent] of leaves(document.body)) {
      const range = document.createRange();
      range.selectNodeContents(node);
      const box = range.getBoundingClientRect();
      for (let at = parent; at && at !== document.body; at = at.parentElement) {
        const style = getComputedStyle(at);
        if (style.overflowX === "visible" && style.overflowY === "visible") continue;
        if (["auto", "scroll"].includes(style.overflowX) || ["auto", "scroll"].includes(style.overflowY)) break; // can be scrolled to
        const frame = at.getBoundingClientRect();
        if (box.right > frame.right + 1.5 || box.left < frame.left - 1.5) { broken.push(`${nameOf(parent)} "${words(parent)}" is cut by ${nameOf(at)}`); break; }
      }
    }
    return broken;
  }

  function overlapping() {
    const boxes = leaves(document.body).filter(([, parent]) => !parent.closest("dialog")).flatMap(([node, parent]) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      const panel = parent.closest(".panel, header");
      const scroller = parent.closest(".env-grid, .alarms, .log, .scroll, pre");
      return [...range.getClientRects()].flatMap((box) => {
        // What is scrolled out of sight lies over nothing.
        const frame = scroller?.getBoundingClientRect();
        if (frame && (box.bottom > frame.bottom || box.top < frame.top)) return [];
        return [{ box, parent, panel, text: node.data.trim().slice(0, 30) }];
      });
    });
    const broken = [];
    boxes.sort((one, other) => one.box.top - other.box.top);
    boxes.forEach((one, index) => {
      for (let next = index + 1; next < boxes.length && boxes[next].box.top < one.box.bottom - 4; next += 1) {
        const other = boxes[next];
        if (one.panel !== other.panel || one.parent === other.parent) continue;
        const width = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
        const height = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
        if (width > 2 && height > 4) broken.push(`"${one.text}" and "${other.text}" overlap in ${one.panel?.id}`);
      }
    });
    return broken;
  }

  return { lowContrast: lowContrast(), unlabelled: unlabelled(), structure: structure(), clipped: clipped(), overlapping: overlapping() };
})()
