"use strict";
(() => {
  const all = (root, selector) => [...root.querySelectorAll(selector)];
  const text = (tag, content, parent) => {
    const element = document.createElement(tag);
    element.textContent = content;
    if (parent) parent.append(element);
    return element;
  };

  // Legends: a click hides and shows a curve in all figures of the section.
  for (const section of all(document, ".curves")) {
    const items = all(section, ".legend li");
    const show = (item, shown) => {
      item.setAttribute("aria-pressed", shown);
      for (const part of all(section, `.plot [data-s="${item.dataset.s}"]`)) part.classList.toggle("off", !shown);
    };
    for (const item of items) {
      item.tabIndex = 0;
      item.setAttribute("role", "button");
      item.setAttribute("aria-pressed", true);
      const toggle = () => show(item, item.getAttribute("aria-pressed") !== "true");
      item.addEventListener("click", toggle);
      item.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      });
    }
    if (items.length > 2) {
      const buttons = document.createElement("div");
      buttons.className = "save";
      text("button", "show all curves", buttons).onclick = () => items.forEach((item) => show(item, true));
      text("button", "hide all", buttons).onclick = () => items.forEach((item) => show(item, false));
      section.querySelector(".legend").after(buttons);
    }
  }

  // Values: the nearest point of a curve, read from its path and the scales of the picture.
  const scale = (attribute) => {
    const [from, to, low, high] = attribute.split(" ").map(Number);
    const log = attribute.endsWith("log");
    const map = (value) => (log ? Math.log(value) : value);
    return (pixel) => {
      const value = map(low) + ((pixel - from) / (to - from)) * (map(high) - map(low));
      return log ? Math.exp(value) : value;
    };
  };
  const shown = (value) => {
    const rounded = Number(value.toPrecision(4));
    return Math.abs(rounded) < 1e-12 ? "0" : String(rounded);
  };
  const points = new WeakMap();
  const pointsOf = (path) => {
    if (!points.has(path)) {
      const numbers = path.getAttribute("d").match(/-?[\d.]+/g).map(Number);
      points.set(path, Array.from({ length: numbers.length / 2 }, (_, i) => [numbers[2 * i], numbers[2 * i + 1]]));
    }
    return points.get(path);
  };
  for (const svg of all(document, "svg[data-x]")) {
    const figure = svg.closest("figure");
    const section = svg.closest("section");
    const [x, y] = [scale(svg.dataset.x), scale(svg.dataset.y)];
    const [, name, unit] = svg.dataset.name.match(/^([^(]*?)(?: \((.*)\))?$/);
    let tip;
    let mark;
    const leave = () => {
      if (tip) tip.remove();
      if (mark) mark.remove();
      tip = mark = undefined;
    };
    const move = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = { distance: 40 * 40 };
      for (const path of all(svg, "g:not(.off) > .line")) {
        const level = path.classList.contains("level");
        for (const [px, py] of level ? [[at.x, pointsOf(path)[0][1]]] : pointsOf(path)) {
          const distance = (px - at.x) ** 2 + (py - at.y) ** 2;
          if (distance < best.distance) best = { distance, px, py, level, group: path.parentNode };
        }
      }
      leave();
      if (!best.group) return;
      mark = document.createElementNS(svg.namespaceURI, "circle");
      for (const [key, value] of [["cx", best.px], ["cy", best.py], ["r", 4], ["class", "hover"]]) mark.setAttribute(key, value);
      svg.append(mark);
      const entry = section.querySelector(`.legend li[data-s="${best.group.dataset.s}"]`);
      tip = document.createElement("div");
      tip.className = "tip";
      if (entry) text("b", entry.textContent, tip).style.display = "block";
      const place = best.level ? "no rounds" : `${name} ${shown(x(best.px))}${unit ? " " + unit : ""}`;
      tip.append(`${shown(y(best.py))} (${place})`);
      figure.append(tip);
      const box = figure.getBoundingClientRect();
      const left = event.clientX - box.left + 14;
      tip.style.left = `${Math.max(0, Math.min(left, box.width - tip.offsetWidth - 2))}px`;
      tip.style.top = `${event.clientY - box.top + 16}px`;
    };
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerdown", move);
    svg.addEventListener("pointerleave", leave);
  }

  // Saving: a copy of the picture with the light colours of the page and a white background. Programs that draw SVG
  // outside of browsers know no variables.
  const figureStyle = () => {
    const rules = document.getElementById("figure-style").textContent;
    const colours = new Map([...rules.matchAll(/(--\w+): (#\w+)/g)].map((match) => [match[1], match[2]]));
    return rules.replace(/:root {[^}]*}/, "").replace(/var\((--\w+)\)/g, (_, name) => colours.get(name));
  };
  const copy = (svg) => {
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const saved = svg.cloneNode(true);
    saved.removeAttribute("style");
    saved.setAttribute("class", "plot");
    saved.setAttribute("width", width);
    saved.setAttribute("height", height);
    for (const hidden of all(saved, ".hover, .off")) hidden.remove();
    const part = (tag) => document.createElementNS(svg.namespaceURI, tag);
    const style = part("style");
    style.textContent = figureStyle();
    const background = part("rect");
    for (const [key, value] of [["width", width], ["height", height], ["fill", "#ffffff"]]) background.setAttribute(key, value);
    saved.prepend(style, background);
    return { source: new XMLSerializer().serializeToString(saved), width, height };
  };
  const download = (blob, file) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const svgBlob = (source) => new Blob([source], { type: "image/svg+xml" });
  const savePng = ({ source, width, height }, file) => {
    const picture = new Image();
    picture.onload = () => {
      const canvas = document.createElement("canvas");
      // 300 dots for each inch of a picture that has 96 pixels an inch.
      const factor = 3.125;
      canvas.width = Math.round(width * factor);
      canvas.height = Math.round(height * factor);
      canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => download(blob, file), "image/png");
    };
    picture.setAttribute("src", "data:image/svg+xml;charset=utf-8," + encodeURIComponent(source));
  };
  for (const figure of all(document, "figure[data-file]")) {
    const buttons = document.createElement("div");
    buttons.className = "save";
    const picture = () => copy(figure.querySelector("svg"));
    const file = figure.dataset.file;
    text("button", "SVG", buttons).onclick = () => download(svgBlob(picture().source), `${file}.svg`);
    text("button", "PNG", buttons).onclick = () => savePng(picture(), `${file}.png`);
    for (const button of buttons.children) button.setAttribute("aria-label", `save ${file} as ${button.textContent}`);
    figure.append(buttons);
  }
})();
