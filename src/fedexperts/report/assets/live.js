// Only on the page that `fedexperts watch` serves: new rounds come into it, and it stays where the reader is.
const sign = document.getElementById("live");

function blank(node) {
  return node.nodeType === Node.TEXT_NODE && !node.data.trim();
}

// Makes the old tree what the fresh one is, and leaves alone whatever is the same: nothing moves that need not.
function morph(old, fresh) {
  const wanted = [...fresh.childNodes].filter(node => !blank(node));
  const ids = new Set(wanted.map(node => node.id).filter(Boolean));
  for (const child of [...old.childNodes]) {
    if (blank(child) || (child.id && !ids.has(child.id))) child.remove();
  }
  const known = new Map([...old.children].filter(child => child.id).map(child => [child.id, child]));
  let at = old.firstChild;
  for (const next of wanted) {
    const same = next.id ? known.get(next.id) : at && !at.id && at.nodeName === next.nodeName ? at : null;
    if (!same) {
      old.insertBefore(next, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    update(same, next);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function update(same, next) {
  if (same.nodeType === Node.TEXT_NODE) {
    if (same.data !== next.data) same.data = next.data;
    return;
  }
  if (same.hasAttribute("data-keep")) return;
  for (const name of ["class", "style", "value", "max"]) {
    const value = next.getAttribute(name);
    if (value === null) same.removeAttribute(name);
    else if (same.getAttribute(name) !== value) same.setAttribute(name, value);
  }
  morph(same, next);
}

function show(news) {
  const fresh = document.createElement("template");
  fresh.innerHTML = news.body;
  morph(document.getElementById("content"), fresh.content);
  document.title = news.title;
  Object.assign(page, news.page);
  document.querySelectorAll("table").forEach(sortTable);
  showClient();
  drawAll();
}

async function ask() {
  try {
    const answer = await fetch(`news?seen=${encodeURIComponent(page.version)}`, { cache: "no-store" });
    if (answer.status === 200) show(await answer.json());
    sign.textContent = "live";
  } catch {
    sign.textContent = "fedexperts watch has ended; this is what it showed last";
  }
  setTimeout(ask, 1000);
}

if (page.version) {
  sign.hidden = false;
  sign.textContent = "live";
  setTimeout(ask, 1000);
}
