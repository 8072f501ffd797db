// Browsers start no worker for a page that was opened from a folder, and the search of the site is a
// worker: here it runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) =>
        setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = inside.document.createElement("script");
      this.started = new Promise((resolve) => (script.onload = resolve));
      script.onerror = (error) => this.onerror?.(error);
      script.src = new URL(url, location);
      inside.document.body.append(script);
    }
    postMessage(data) {
      this.started.then(() => this.frame.contentWindow?.onmessage({ data: structuredClone(data) }));
    }
    terminate() {
      this.frame.remove();
    }
  };
