// Set the theme before the first paint: light, dark, or the system's.
"use strict";
(() => {
  let wanted = null;
  try {
    wanted = localStorage.getItem("glassformer.theme");
  } catch {
    // Storage may be forbidden; the system's theme is used then.
  }
  if (wanted === "light" || wanted === "dark") document.documentElement.dataset.theme = wanted;
})();
