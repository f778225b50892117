// What deployment needs, to copy with one click; what was copied is said aloud.
const ABOUT = {
  "layerPrecisions.txt": ["trtexec --layerPrecisions", "TensorRT 8.6 to 10.x, weakly typed."],
  "trtexec.sh": ["trtexec.sh", "The commands for trtexec of each version."],
  "polygraphy_constraints.py": ["Polygraphy constraints", "A script for polygraphy convert --trt-network-postprocess-script."],
  "autocast-exclude.txt": ["ModelOpt AutoCast", "Patterns for --nodes_to_exclude."],
  "torch_autocast.py": ["PyTorch", "Keeps modules in FP32 in PyTorch and in Torch-TensorRT."],
};

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from a disk may not have the clipboard; an invisible selection can still be copied.
    const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

function copyButton(text, label = "Copy") {
  const made = button(label, async () => {
    const copied = await copyText(text);
    made.textContent = copied ? "Copied" : "Select and copy by hand";
    byId("said").textContent = copied ? "Copied to the clipboard" : "The browser did not allow copying";
    setTimeout(() => { made.textContent = label; byId("said").textContent = ""; }, 2000);
    made.focus();
  }, { class: "copy" });
  return made;
}

function copyCard(title, about, text, kind = "card") {
  const shown = text === null ? [el("p", { class: "hint" }, "Too long to copy into this page; it is in the run folder.")]
    : [copyButton(text), el("details", {}, el("summary", {}, "Show"), el("pre", { tabindex: "0" }, text))];
  return el("article", { class: kind }, el("h3", {}, title), el("p", { class: "hint" }, about), shown);
}

function commandCard(title, about, command) {
  return el("article", { class: "card" }, el("h3", {}, title), el("p", { class: "hint" }, about), commandLine(command), copyButton(command));
}

// The model itself comes first: it is too large for this page, what opens and judges it is not.
function mixedCards() {
  const model = commandCard("model.mixed.onnx", "The strongly typed model, in the run folder. TensorRT 10 and 11, TensorRT-RTX and ONNX Runtime on CUDA build it as it is:", "sh trtexec.sh strong10");
  if (!data.confirm) return [model];
  return [model, commandCard("Confirm on the target", "TensorRT judges the stored samples. To be run in the run folder:", data.confirm)];
}

function drawExports() {
  const names = data.kept.map((row) => row.layer);
  const cards = Object.entries(data.exports).map(([name, text]) => {
    const [title, about] = ABOUT[name] ?? [name, "Written by a plug-in."];
    return copyCard(title, `${about} In the run folder: ${name}`, text);
  });
  if (cards.length) cards.unshift(...mixedCards());
  if (names.length) cards.push(
    copyCard("Names of the kept layers", "One a line, in network order.", names.join("\n"), "card screen"),
    copyCard("The same as JSON", "A list of names for scripts.", JSON.stringify(names, null, 2), "card screen"));
  if (cards.length) byId("copies").append(el("div", { class: "cards" }, cards));
  else byId("exports").remove();
}

function drawFingerprint() {
  const text = JSON.stringify(data.fingerprint, null, 2);
  const words = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? "none"));
  const rows = Object.entries(data.fingerprint).map(([key, value]) => [key, words(value) || "none"]);
  const list = facts(rows);
  list.classList.add("wide");
  byId("prints").append(copyButton(text, "Copy as JSON"), list);
}
