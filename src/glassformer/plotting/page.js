// The page that works offline: every map of one input, from data that the page itself holds.

import { inflate, weightScale } from "./painting.js";
import { MapMemory, element, showChecks, showGrid, showKeys } from "./overview.js";
import { MapDetail } from "./viewer.js";

/** Show `data` (what `html.page_data` makes) in `root`. */
export async function showMaps(root, data) {
  const scale = weightScale(await inflate(data.colours), data.masked);
  const memory = new MapMemory();
  const source = {
    places: data.places, scale, hasMasked: data.has_masked,
    bytes: (place, layer, head) =>
      memory.get([place, layer, head].join("/"), () => inflate(data.places[place].maps[layer][head])),
  };
  const header = element(root, "header");
  element(header, "h1", data.title);
  element(header, "p", data.subtitle, "subtitle").title = data.subtitle;
  const layout = element(root, "div", "", "layout");
  const names = Object.keys(data.places);
  const count = names.reduce((sum, name) => sum + data.places[name].maps.flat().length, 0);
  const detail = new MapDetail(source);
  if (count > 1) {
    layout.classList.add("has-several");
    const overview = element(layout, "section");
    overview.setAttribute("aria-label", "all maps");
    for (const name of names) showGrid(overview, name, source, detail);
  }
  layout.append(detail.element);
  const footer = element(root, "footer");
  element(footer, "p", data.caption, "caption");
  showChecks(footer, data);
  element(footer, "p", data.rounding);
  showKeys(element(footer, "p"));
  await detail.choose(names[0], 0, 0);
}
