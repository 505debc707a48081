// Websockets that come back: doubling pauses with jitter, at most ten seconds.
// Closed because the run has ended, there is nothing to come back for.

const RUN_ENDED = [1000, 4011]; // 4011: without its last events, which could not be written
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10000;

export class Connection {
  constructor(path, { onMessage, onState, hello }) {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.url = `${scheme}//${location.host}${path}${location.search}`;
    this.onMessage = onMessage;
    this.onState = onState ?? (() => {});
    this.hello = hello ?? (() => {});
    this.pause = FIRST_PAUSE_MS;
    this.open();
  }

  open() {
    this.onState("connecting");
    this.socket = new WebSocket(this.url);
    this.socket.addEventListener("open", () => {
      this.pause = FIRST_PAUSE_MS;
      this.onState("connected");
      this.hello();
    });
    this.socket.addEventListener("message", (event) => this.onMessage(event.data));
    this.socket.addEventListener("close", (event) => {
      if (RUN_ENDED.includes(event.code)) {
        this.onState("ended");
        return;
      }
      this.onState("disconnected");
      setTimeout(() => this.open(), this.pause * (0.75 + Math.random() / 2));
      this.pause = Math.min(2 * this.pause, LONGEST_PAUSE_MS);
    });
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}
