// What a user of OpenAI's SDK for JavaScript does with tools and schemas, as one JSON object.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const { resolve } = createRequire(process.env.CLIENT_DIRECTORY + "/");
const { default: OpenAI } = await import(pathToFileURL(resolve("openai")));

const client = new OpenAI({
  baseURL: process.env.SLUICE_BASE_URL,
  apiKey: process.env.SLUICE_API_KEY,
  maxRetries: 5,
});
const schema = {
  type: "object",
  properties: { city: { enum: ["Rome", "Oslo"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
const reached = { model: "sluice-demo", temperature: 0, max_tokens: 400 };
const messages = [{ role: "user", content: "Weather in Rome?" }];
const tool_choice = "required";
const forced = { ...reached, messages, tools, tool_choice, parallel_tool_calls: false };

const first = (await client.chat.completions.create(forced)).choices[0];
const call = first.message.tool_calls[0];
// The SDK's own reader of streams, which puts calls together again.
const streamed = await client.chat.completions.stream(forced).finalChatCompletion();
const results = { role: "tool", tool_call_id: call.id, content: "Hot." };
const second = await client.chat.completions.create({
  ...reached,
  messages: [...messages, first.message, results],
  tools,
});
const json_schema = { name: "weather", schema, strict: true };
const parsed = await client.chat.completions.parse({
  ...reached,
  messages,
  response_format: { type: "json_schema", json_schema },
});
// The same over responses, whose tools are flat.
const made = await client.responses.create({
  model: "sluice-demo",
  temperature: 0,
  max_output_tokens: 400,
  input: messages[0].content,
  tools: [{ type: "function", name: "weather", parameters: schema, strict: true }],
  tool_choice,
});
const madeCall = made.output.find((item) => item.type === "function_call");
const madeParsed = await client.responses.parse({
  model: "sluice-demo",
  temperature: 0,
  max_output_tokens: 400,
  input: messages[0].content,
  text: { format: { type: "json_schema", ...json_schema } },
});
// The SDK calls the function itself, and goes on with its result.
const ran = [];
const runnable = (args) => {
  ran.push(args.city);
  return "Hot.";
};
const runner = client.chat.completions.runTools({
  ...reached,
  messages,
  tool_choice: { type: "function", function: { name: "weather" } },
  tools: [
    {
      type: "function",
      function: { name: "weather", parse: JSON.parse, function: runnable, parameters: schema },
    },
  ],
});
await runner.done();

console.log(
  JSON.stringify({
    name: call.function.name,
    city: JSON.parse(call.function.arguments).city,
    finish: first.finish_reason,
    streamed: streamed.choices[0].message.tool_calls[0].function.arguments ===
      call.function.arguments,
    second: second.choices[0].message.content,
    made_city: JSON.parse(madeCall.arguments).city,
    made_parsed: JSON.parse(madeParsed.output_text).city,
    parsed: JSON.parse(parsed.choices[0].message.content).city,
    ran,
  }),
);
