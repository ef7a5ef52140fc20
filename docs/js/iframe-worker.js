/* Lets the search work on pages opened from disk, where browsers refuse web workers.
 *
 * On file:// only, Worker becomes a hidden frame that runs the same script and passes messages by events. */
(() => {
  if (location.protocol !== "file:") return

  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html>"
      this.frame.onload = () => this.start(new URL(url, document.baseURI))
      document.body.append(this.frame)
    }

    async start(url) {
      const inner = this.inner = this.frame.contentWindow
      // the script believes itself in a worker: what it posts arrives here
      inner.postMessage = data => this.deliver(this, data)
      inner.importScripts = (...urls) =>
        Promise.all(urls.map(src => this.load(inner.document, new URL(src, url))))
      await this.load(inner.document, url)
      const waiting = this.waiting
      this.waiting = null
      waiting.forEach(data => this.deliver(inner, data))
    }

    load(page, src) {
      return new Promise((done, fail) => {
        const script = page.createElement("script")
        script.src = src
        script.onload = done
        script.onerror = fail
        page.head.append(script)
      })
    }

    deliver(target, data) {
      const event = new MessageEvent("message", { data })
      target.dispatchEvent(event)
      if (target === this && this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(this.inner, data)
    }

    terminate() {
      this.frame.remove()
    }
  }
})()
