// Before the first paint: light, dark, or as the system has it.
"use strict";
(() => {
  let wanted = null;
  try {
    wanted = localStorage.getItem("glassformer.theme");
  } catch {
    // Storage may be forbidden: then it is as the system has it.
  }
  if (wanted === "light" || wanted === "dark") document.documentElement.dataset.theme = wanted;
})();
