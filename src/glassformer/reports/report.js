// Script of the report: replaces pictures of attention maps by interactive ones, and opens all collapsed parts
// for printing. Without it the page has the same content.

import { inflate, readScale } from "./painting.js";
import { MapMemory, element, showGrid, showKeys } from "./overview.js";
import { MapDetail } from "./viewer.js";

async function showFigure(figure) {
  const data = JSON.parse(document.getElementById(figure.dataset.maps).textContent);
  const scale = await readScale(data.scales);
  const memory = new MapMemory();
  const source = {
    sites: data.sites, scale, hasMasked: data.has_masked,
    bytes: (site, layer, head) =>
      memory.get([site, layer, head].join("/"), () => inflate(data.sites[site].maps[layer][head])),
  };
  const live = figure.querySelector(".live");
  const names = Object.keys(data.sites);
  const count = names.reduce((sum, name) => sum + data.sites[name].maps.flat().length, 0);
  const detail = new MapDetail(source, { tallest: () => Math.max(280, Math.min(460, window.innerHeight * 0.7)) });
  if (count > 1) {
    live.classList.add("has-several");
    const overview = element(live, "section");
    overview.setAttribute("aria-label", "all maps");
    for (const name of names) showGrid(overview, name, source, detail);
  }
  live.append(detail.element);
  element(live, "p", data.rounding, "note");
  showKeys(element(live, "p", "", "note keys"));
  figure.classList.add("is-live"); // visible now, so it has a width
  await detail.choose(names[0], 0, 0);
}

for (const figure of document.querySelectorAll("figure.maps")) {
  showFigure(figure).catch((error) => {
    figure.classList.remove("is-live");
    console.warn(error.message);
  });
}

const unfolded = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    unfolded.push(details);
  }
});
addEventListener("afterprint", () => {
  for (const details of unfolded.splice(0)) details.open = false;
});
