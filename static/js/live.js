// Keeps a page's panels current: pushed over the websocket, polled while it is away. The state is always in words.

const POLL_MS = 5000;
const RETRY_MIN_MS = 1000;
const RETRY_MAX_MS = 15000;
const SIGNED_OUT = 4401;

const page = () => document.querySelector("main[data-page]");
const first = page();

class Live {
  constructor() {
    this.paused = false;
    this.socket = null;
    this.retry_ms = RETRY_MIN_MS;
    this.updates = 0;
    this.updatedAt = Number(first.dataset.renderedAt);
    this.say("loading");
  }

  start() {
    this.connect();
    setInterval(() => this.poll(), POLL_MS);
    document.addEventListener("visibilitychange", () => this.subscribe());
  }

  get wanted() {
    return !this.paused && !document.hidden;
  }
  get connected() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(`${scheme}//${location.host}/ws/live`);
    this.socket.binaryType = "arraybuffer";
    this.socket.addEventListener("open", () => {
      this.retry_ms = RETRY_MIN_MS;
      this.subscribe();
    });
    // One after the other: an update that unpacks faster must not overtake the one before.
    let last = Promise.resolve();
    this.socket.addEventListener("message", ({ data }) => {
      last = last.then(async () => this.receive(JSON.parse(typeof data === "string" ? data : await unpacked(data))));
    });
    this.socket.addEventListener("close", (event) => this.closed(event));
  }

  subscribe() {
    if (!this.connected) return;
    const main = page();
    const message = this.wanted
      ? { type: "subscribe", page: main.dataset.page, query: main.dataset.query }
      : { type: "pause" };
    this.socket.send(JSON.stringify(message));
  }

  receive(message) {
    if (message.type === "panels" && !this.paused) this.apply(message.html, message.at, "live");
    else if (message.type === "error") this.say("disconnected", message.message);
  }

  closed(event) {
    if (event.code === SIGNED_OUT) {
      location.reload();
      return;
    }
    this.say(this.paused ? "paused" : "polling");
    setTimeout(() => this.connect(), this.retry_ms * (0.7 + 0.6 * Math.random()));
    this.retry_ms = Math.min(this.retry_ms * 2, RETRY_MAX_MS);
  }

  async poll() {
    if (!this.wanted || this.connected) return;
    const main = page();
    try {
      const answer = await fetch(`/fragments/${main.dataset.page}/?${main.dataset.query}`, { redirect: "manual" });
      if (answer.type === "opaqueredirect") {
        location.reload();
        return;
      }
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const html = await answer.text();
      if (this.wanted && !this.connected) this.apply(html, Number(answer.headers.get("X-Rendered-At")), "polling");
    } catch {
      this.say("disconnected");
    }
  }

  apply(html, at_s, state) {
    const incoming = document.createElement("template");
    incoming.innerHTML = html;
    for (const panel of incoming.content.children) {
      const shown = document.getElementById(panel.id);
      if (shown) htmx.swap({ target: shown, sourceElement: shown, text: panel.outerHTML, swap: "outerMorph" });
    }
    this.updates += 1;
    this.updatedAt = at_s;
    page().dataset.updates = this.updates;
    this.say(state);
  }

  toggle() {
    this.paused = !this.paused;
    this.subscribe();
    this.say(this.paused ? "paused" : this.connected ? "live" : "polling");
    return this.paused;
  }

  say(state, detail = "") {
    const line = document.getElementById("live-state");
    if (!line) return;
    const clock = new Date(this.updatedAt * 1000).toLocaleTimeString([], { hour12: false, timeZone: zone });
    const words = { loading: "connecting", live: "live", polling: "polling", paused: "paused", disconnected: "disconnected" };
    line.dataset.state = state;
    line.title = detail;
    // Ticking every second would make a screen reader speak without end: only the state's word is announced.
    const word = line.querySelector(".live-word");
    word.querySelector("b") || word.replaceChildren(document.createElement("b"), document.createElement("span"));
    const [name, time] = word.children;
    if (name.textContent !== words[state]) name.textContent = words[state];
    time.textContent = ` ${clock}`;
    time.setAttribute("aria-hidden", "true");
  }
}

/** Text of a gzip. */
function unpacked(data) {
  return new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const zone = first ? new URLSearchParams(first.dataset.query).get("tz") || undefined : undefined;

if (first?.dataset.live === "true") {
  const live = new Live();
  const button = document.getElementById("live-toggle");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const paused = live.toggle();
      button.setAttribute("aria-pressed", String(paused));
      button.querySelector("span").textContent = paused ? "Resume" : "Pause";
    });
  }
  live.start();
}
