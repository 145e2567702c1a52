// A live page: applies what the server sends. Its HTML was escaped by the server's templates.

const Live = {
  state: document.getElementById("live-state"),
  last: 0,

  // A hidden page lets go of its connection after a while: a browser has only six for one server.
  start(address) {
    this.listen(address);
    let hidden = null;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hidden);
      if (document.hidden) hidden = setTimeout(() => { this.source.close(); this.source = null; }, 10000);
      else if (!this.source) this.listen(address);
    });
    setInterval(() => { if (this.last && Date.now() - this.last > 5000) this.tell("off", "no connection, trying again"); }, 1000);
  },

  listen(address) {
    this.source = new EventSource(address);
    this.source.onmessage = (event) => this.take(JSON.parse(event.data));
    this.source.onerror = () => this.tell("off", "no connection, trying again");
  },

  take(message) {
    this.last = Date.now();
    if (message.reload) { location.reload(); return; }
    if (message.whole) Plots.clear("run");
    if (message.fragments) this.replace(message.fragments);
    if (message.actions) Plots.act(message.actions);
    if (message.charts) Plots.add(message.charts);
    if (message.series) Plots.patch(message.series);
    if (message.heat) Heat.apply(message.heat);
    if (typeof message.step === "number") document.body.dataset.step = message.step;
    if (message.quiet !== undefined) this.tellAge(message);
  },

  tellAge(message) {
    if (!message.begun) this.tell("", "waiting for the run to begin");
    else if (message.fate === "closed") this.tell("", "the run has ended");
    else if (message.fate === "abandoned") this.tell("off", "the run ended without closing: its process is gone, killed or crashed");
    else if (message.quiet < 15) this.tell("on", "live");
    else this.tell("", `nothing new for ${age(message.quiet)}: the run has ended, was killed, or is busy`);
  },

  tell(kind, words) {
    if (this.state.textContent === words) return;
    this.state.className = `state ${kind}`;
    this.state.textContent = words;
  },

  replace(fragments) {
    for (const name of Object.keys(fragments).sort()) {
      const place = document.querySelector(`[data-fragment="${CSS.escape(name)}"]`) || this.newIncident(name);
      if (!place || (place.contains(document.activeElement) && place.firstChild)) continue;
      const kept = new Map();
      for (const node of place.querySelectorAll("[data-keep]")) kept.set(node.dataset.keep, [node.open, node.scrollTop]);
      const charts = [...place.querySelectorAll("[data-charts]")];
      place.innerHTML = fragments[name];
      for (const node of place.querySelectorAll("[data-keep]")) {
        const [open, top] = kept.get(node.dataset.keep) || [false, 0];
        if (open) node.open = true;
        node.scrollTop = top;
      }
      for (const old of charts) {
        const fresh = [...place.querySelectorAll("[data-charts]")].find((node) => node.dataset.charts === old.dataset.charts);
        if (fresh) fresh.replaceWith(old);
      }
    }
  },

  newIncident(name) {
    if (!name.startsWith("incident-")) return null;
    const place = document.createElement("div");
    place.dataset.fragment = name;
    document.getElementById("incidents").appendChild(place);
    return place;
  },
};

function age(seconds) {
  return seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

if (DATA.live) Live.start(DATA.live);
