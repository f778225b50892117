function setUpSections() {
  const sections = [...document.querySelectorAll("section[data-nav]")];
  byId("sections").append(...sections.map((section) => el("a", { href: `#${section.id}` }, section.dataset.nav)));
}

setUpTheme();
drawAnswer();
drawCurve();
setUpTree();
drawKept();
drawSearches();
drawSensitivity();
drawExports();
drawFingerprint();
setUpSections();
root.dataset.ready = "true";
