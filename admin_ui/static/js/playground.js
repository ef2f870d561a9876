// The playground's form, answered as the answer comes; without this it is a form like any other.
"use strict";
(() => {
  const form = document.getElementById("playground");
  if (!form || !window.ReadableStream) return;
  const at = (id) => document.getElementById(id);
  const { prompt, said } = form.elements;
  const [state, stop, chat] = [at("chat-state"), at("chat-stop"), at("chat")];
  let running = null;

  const add = (role, text) => {
    const turn = at("chat-turn").content.firstElementChild.cloneNode(true);
    turn.className = `turn ${role}`;
    turn.querySelector(".who").textContent = role === "user" ? "You" : "Model";
    const place = turn.querySelector("p");
    place.textContent = text;
    chat.append(turn);
    return place;
  };
  const fail = (text) => {
    const place = document.createElement("p");
    place.className = "bad";
    place.setAttribute("role", "alert");
    place.textContent = text;
    at("chat-error").replaceChildren(place);
  };
  const read = async (response, place) => {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.match(/^data: (\{.*\})$/m);
        const shown = data && JSON.parse(data[1]);
        if (!shown) continue;
        if (event.startsWith("event: figures")) {
          for (const [name, text] of Object.entries(shown)) document.querySelector(`[data-figure=${name}]`).textContent = text;
        } else if (shown.error) throw new Error(shown.error.message);
        else place.textContent += shown.choices[0]?.delta.content ?? "";
      }
    }
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return;
    const sent = new URLSearchParams(new FormData(form)), text = prompt.value.trim();
    running = new AbortController();
    stop.hidden = false;
    state.textContent = "Answering";
    at("chat-error").replaceChildren();
    let place = null;
    try {
      const response = await fetch(form.dataset.stream, { method: "POST", body: sent, signal: running.signal });
      if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
        const refused = await response.json().catch(() => null);
        throw new Error(refused?.error.message ?? "There was no answer.");
      }
      add("user", text);
      place = add("assistant", "");
      prompt.value = "";
      await read(response, place);
      state.textContent = "Answered";
    } catch (error) {
      state.textContent = error.name === "AbortError" ? "Stopped" : "";
      if (error.name !== "AbortError") fail(error.message);
    }
    if (place) said.value = JSON.stringify([...JSON.parse(said.value), { role: "user", content: text }, { role: "assistant", content: place.textContent }]);
    running = null;
    stop.hidden = true;
    prompt.focus();
  });
  stop.addEventListener("click", () => running?.abort());
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
})();
