// Points the providers of pi at the gateway of `foveate run`. They keep their models, keys and log-ins.
export default function (pi) {
  const url = process.env.FOVEATE_RUN_URL;
  if (!url) return;
  pi.registerProvider("anthropic", { baseUrl: url });
  pi.registerProvider("openai", { baseUrl: `${url}/v1` });
  pi.registerProvider("google", { baseUrl: `${url}/v1beta` });
}
