// The form of a batch: a file that is dropped on it is as one chosen, and what it has is told before
// it is sent. Without this it is a form like any other.
"use strict";
(() => {
  const form = document.getElementById("submit-batch");
  if (!form) return;
  const file = form.elements.file, zone = document.getElementById("drop");
  const said = form.querySelector("[data-file-said]"), sending = form.querySelector("[data-sending]");
  const LOOKED_AT_BYTES = 8 << 20;
  const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`);

  // The first line that is no JSON object; the server looks at all of each, once it has the file.
  const faulty = (lines) => lines.findIndex((line) => {
    if (!line.trim()) return false;
    try { const read = JSON.parse(line); return read === null || typeof read !== "object" || Array.isArray(read); } catch { return true; }
  });
  const look = async () => {
    const one = file.files[0];
    said.className = "small dim";
    said.textContent = "";
    file.setCustomValidity("");
    if (!one) return;
    if (one.size > Number(file.dataset.max)) {
      file.setCustomValidity("The file is too large for a batch.");
      said.className = "small bad";
      said.textContent = `${size(one.size)}: too large for a batch.`;
    } else if (one.size > LOOKED_AT_BYTES) said.textContent = size(one.size);
    else {
      const lines = (await one.text()).replace(/^\ufeff/, "").split("\n");
      if (file.files[0] !== one) return;
      const number = lines.filter((line) => line.trim()).length, bad = faulty(lines);
      if (bad >= 0) said.className = "small bad";
      said.textContent = `${number.toLocaleString("en")} ${number === 1 ? "line" : "lines"}, ${size(one.size)}${bad >= 0 ? `. Line ${bad + 1} is no JSON object.` : ""}`;
    }
  };
  file.addEventListener("change", look);

  form.querySelector("[data-drop-hint]").hidden = false;
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  for (const name of ["dragenter", "dragover"]) zone.addEventListener(name, (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", (event) => { if (!zone.contains(event.relatedTarget)) zone.classList.remove("over"); });
  zone.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    zone.classList.remove("over");
    const one = event.dataTransfer.files;
    if (one.length !== 1) { said.className = "small bad"; said.textContent = "One file makes a batch: drop one."; return; }
    file.files = one;
    file.focus();
    look();
  });
  // What is dropped beside it would otherwise be opened in place of the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => { if (holdsFiles(event)) event.preventDefault(); });

  form.addEventListener("submit", () => {
    sending.textContent = "Uploading …";
    // After the form's data was taken: a button that is off would take itself out of it.
    setTimeout(() => { form.querySelector("button.primary").disabled = true; });
  });
  window.addEventListener("pageshow", () => {
    sending.textContent = "";
    form.querySelector("button.primary").disabled = false;
    look();
  });
})();
