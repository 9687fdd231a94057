// Only on the page that `fedexperts watch` serves: new rounds come into it, and it stays where the reader is.
const sign = document.getElementById("live");

function morph(old, fresh) {
  const known = new Map([...old.children].filter(child => child.id).map(child => [child.id, child]));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const same = next.id ? known.get(next.id) : at && !at.id && at.nodeName === next.nodeName ? at : null;
    if (!same) {
      old.insertBefore(next, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    if (same.nodeType === Node.TEXT_NODE) {
      if (same.data !== next.data) same.data = next.data;
    } else if (!same.hasAttribute("data-keep")) {
      for (const name of ["class", "style", "value", "max"]) {
        if (next.hasAttribute(name) && same.getAttribute(name) !== next.getAttribute(name)) {
          same.setAttribute(name, next.getAttribute(name));
        } else if (!next.hasAttribute(name)) same.removeAttribute(name);
      }
      morph(same, next);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
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
