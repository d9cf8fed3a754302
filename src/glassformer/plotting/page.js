// Offline page: every map of one input, from data embedded in the page.

import { inflate, readScale } from "./painting.js";
import { MapMemory, element, showChecks, showGrid, showKeys } from "./overview.js";
import { MapDetail } from "./viewer.js";

/** Show `data`, made by `page_data` of page.py, in `root`. */
export async function showMaps(root, data) {
  const scale = await readScale(data.scales);
  const memory = new MapMemory();
  const source = {
    sites: data.sites, scale, hasMasked: data.has_masked,
    bytes: (site, layer, head) =>
      memory.get([site, layer, head].join("/"), () => inflate(data.sites[site].maps[layer][head])),
  };
  const header = element(root, "header");
  element(header, "h1", data.title);
  element(header, "p", data.subtitle, "subtitle").title = data.subtitle;
  const layout = element(root, "div", "", "layout");
  const names = Object.keys(data.sites);
  const count = names.reduce((sum, name) => sum + data.sites[name].maps.flat().length, 0);
  const detail = new MapDetail(source);
  if (count > 1) {
    layout.classList.add("has-several");
    const overview = element(layout, "section");
    overview.setAttribute("aria-label", "all maps");
    for (const name of names) showGrid(overview, name, source, detail);
  }
  layout.append(detail.element);
  const footer = element(root, "footer");
  if (data.warning) element(footer, "p", `Warning: ${data.warning}`, "problem");
  element(footer, "p", data.caption, "caption");
  showChecks(footer, data);
  element(footer, "p", data.rounding);
  showKeys(element(footer, "p"));
  await detail.choose(names[0], 0, 0);
}

const root = document.querySelector("main");
showMaps(root, JSON.parse(document.getElementById("data").textContent)).catch((error) => {
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.textContent = error.message;
  root.append(problem);
});
