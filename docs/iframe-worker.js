// Search on pages that are opened from a folder: browsers refuse workers there, so the search runs in a hidden frame.
// mkdocs-material would load such a script from another site on every page (its plugin `offline`); this one is our own.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.document.open()
      inside.document.write("<!doctype html><title>search</title>")
      inside.document.close()
      inside.postMessage = data => {
        const message = new MessageEvent("message", { data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      const load = address =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script")
          script.src = address
          script.onload = done
          script.onerror = () => failed(new Error("cannot load " + address))
          inside.document.body.appendChild(script)
        })
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve())
      this.frame = frame
      this.ready = load(new URL(url, location.href).href)
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
