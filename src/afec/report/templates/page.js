"use strict";
(() => {
  const root = document.documentElement;
  const kept = (value) => {
    try {
      if (value) localStorage.setItem("afec-theme", value);
      return localStorage.getItem("afec-theme");
    } catch { return null; }
  };
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  if (kept()) root.dataset.theme = kept() === "dark" ? "dark" : "light";
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    kept(root.dataset.theme);
  });

  // Tables: numbers by their value, words by the alphabet; what is missing stays last.
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
      const rows = [...table.tBodies[0].rows];
      const numeric = rows.some((row) => row.cells[column].dataset.sort !== undefined);
      const [first, other] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const key = (row) => numeric ? parseFloat(row.cells[column].dataset.sort) : row.cells[column].textContent.trim();
      rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (numeric && (Number.isNaN(x) || Number.isNaN(y))) return Number.isNaN(x) - Number.isNaN(y);
        return (order === "ascending" ? 1 : -1) * (numeric ? x - y : x.localeCompare(y));
      });
      table.tBodies[0].append(...rows);
    }));
  }

  // A table that is wider than its place says that there is more of it.
  const hint = () => document.querySelectorAll(".wide").forEach((one) => one.toggleAttribute("data-more", one.scrollWidth > one.clientWidth + 1));
  hint();
  addEventListener("resize", hint);

  // What the pointer, or a finger, is on.
  const tip = document.getElementById("tip");
  const words = (target, event) => {
    const named = target.closest?.("[data-s]")?.dataset.s;
    if (target.dataset?.t) return `${named}: ${target.dataset.t}`;
    const heat = target.closest?.("svg.heat");
    if (!heat) return "";
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(heat.getScreenCTM().inverse());
    const [row, column] = [Math.floor(at.y), Math.floor(at.x)];
    const value = heat.dataset.v.split(";")[row]?.split(",")[column];
    if (value === undefined) return "";
    const names = heat.dataset.names.split("\n");
    const task = names[column] || `task ${column + 1}`;
    if (heat.dataset.square) return `${named}: ${names[row] || `task ${row + 1}`}, answered as ${task}: ${value}`;
    const when = row === 0 ? "at random initialisation" : `after ${row} task${row > 1 ? "s" : ""}`;
    return `${named}: ${task}, ${when}: ${value || "not measured"}`;
  };
  const show = (event) => {
    const text = event.target instanceof Element ? words(event.target, event) : "";
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // A name in a legend brings its lines forward.
  for (const item of document.querySelectorAll(".legend li")) {
    const others = () => [...item.closest("figure").querySelectorAll("[data-s]")].filter((one) => one.dataset.s !== item.textContent);
    item.addEventListener("pointerenter", () => others().forEach((one) => one.classList.add("faded")));
    item.addEventListener("pointerleave", () => others().forEach((one) => one.classList.remove("faded")));
  }

  // A figure as a file, with its title and legend: colours come from the style sheet, so they are written into a copy first.
  const written = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "paint-order", "opacity", "font-size", "font-family", "text-anchor"];
  const node = (name, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.textContent = text;
    return made;
  };
  const standalone = (svg) => {
    const [page, figure, panel, width] = [getComputedStyle(document.body), svg.closest("figure"), svg.closest(".panel"), 900];
    const copy = svg.cloneNode(true);
    const [from, to] = [[svg, ...svg.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
    from.forEach((one, place) => {
      const style = getComputedStyle(one);
      written.forEach((name) => to[place].setAttribute(name, style.getPropertyValue(name)));
    });
    const tall = Math.round(svg.viewBox.baseVal.height * width / svg.viewBox.baseVal.width);
    Object.entries({ x: 0, y: 44, width, height: tall }).forEach(([key, value]) => copy.setAttribute(key, value));
    const names = [...figure.querySelectorAll(".legend li")];
    const height = 44 + tall + 26 * names.length + (names.length ? 10 : 0);
    const whole = node("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height });
    const words = (x, y, size, text) => node("text", { x, y, "font-size": size, "font-family": "sans-serif", fill: page.color }, text);
    whole.append(node("rect", { width, height, fill: page.backgroundColor }));
    whole.append(words(16, 30, 22, (panel.querySelector("h4") ?? figure.querySelector("h3")).textContent), copy);
    names.forEach((item, place) => {
      const [style, y] = [getComputedStyle(item.querySelector("path")), 44 + tall + 20 + 26 * place];
      whole.append(node("path", { d: `M16 ${y - 6}H60`, stroke: style.stroke, "stroke-width": 4, "stroke-dasharray": style.strokeDasharray }));
      whole.append(words(72, y, 18, item.textContent));
    });
    return [new XMLSerializer().serializeToString(whole), width, height];
  };
  const save = (blob, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  for (const span of document.querySelectorAll(".save")) {
    span.hidden = false;
    const figure = span.closest("figure");
    for (const button of span.querySelectorAll("button")) {
      button.addEventListener("click", () => [...figure.querySelectorAll(".panel svg")].forEach((svg, place) => {
        const name = `${figure.dataset.name}-${place + 1}.${button.dataset.as}`;
        const [text, width, height] = standalone(svg);
        if (button.dataset.as === "svg") return save(new Blob([text], { type: "image/svg+xml" }), name);
        const image = new Image();
        image.addEventListener("load", () => {
          const canvas = Object.assign(document.createElement("canvas"), { width, height });
          canvas.getContext("2d").drawImage(image, 0, 0);
          canvas.toBlob((blob) => save(blob, name));
        });
        image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
      }));
    }
  }
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const range = document.createRange();
      range.selectNodeContents(button.parentElement.querySelector("pre"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
      button.textContent = "Copied";
    });
  }
})();
