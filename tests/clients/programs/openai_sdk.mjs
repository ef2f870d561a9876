// What a user of OpenAI's SDK for JavaScript does, printed as one JSON object.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The package lies in the client's own environment, not beside this file.
const { resolve } = createRequire(process.env.CLIENT_DIRECTORY + "/");
const { default: OpenAI } = await import(pathToFileURL(resolve("openai")));

const options = {
  baseURL: process.env.SLUICE_BASE_URL,
  apiKey: process.env.SLUICE_API_KEY,
  maxRetries: 5,
};
const client = new OpenAI(options);
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is Sluice?" }];
const ask = (more) =>
  client.chat.completions.create({ model, messages, temperature: 0, ...more });

async function raised(call) {
  try {
    await call();
    return { class: null };
  } catch (error) {
    const { code, param } = error;
    return { class: error.constructor.name, code, param };
  }
}

const whole = await ask();
let streamed = "";
let streamedUsage = null;
const options_ = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await ask(options_)) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  streamedUsage = chunk.usage ?? streamedUsage;
}
// The SDK's own reader of streams, which puts an answer together again.
const gathered = await client.chat.completions
  .stream({ model, messages, temperature: 0 })
  .finalContent();
// The same over responses: whole, as events, by the SDK's own reader, and gone on from.
const question = { model, input: messages[0].content, temperature: 0 };
const made = await client.responses.create(question);
const kinds = [];
let madeStreamed = "";
for await (const event of await client.responses.create({ ...question, stream: true })) {
  kinds.push(event.type);
  if (event.type === "response.output_text.delta") madeStreamed += event.delta;
}
const madeGathered = await client.responses.stream(question).finalResponse();
const madeThen = await client.responses.create({
  ...question,
  input: "Why?",
  previous_response_id: made.id,
});
const madeKept = await client.responses.retrieve(made.id);
await client.responses.delete(made.id);
const stranger = new OpenAI({ ...options, apiKey: "sk-nobody" });

console.log(
  JSON.stringify({
    model,
    whole: whole.choices[0].message.content,
    usage: whole.usage,
    streamed,
    streamed_usage: streamedUsage,
    gathered,
    made: made.output_text,
    made_usage: made.usage,
    made_streamed: madeStreamed,
    made_ends: [kinds[0], kinds.at(-1)],
    made_gathered: madeGathered.output_text,
    made_kept: madeKept.output[0].content[0].text,
    made_then: [madeThen.output_text, madeThen.usage.input_tokens],
    made_gone: await raised(() => client.responses.retrieve(made.id)),
    nobody: await raised(() => stranger.models.list()),
    no_model: await raised(() => ask({ model: "gpt-none" })),
    too_long: await raised(() => ask({ max_tokens: 1_000_000 })),
  }),
);
