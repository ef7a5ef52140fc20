/* Runs the WGSL of docs/webgpu.md on the reader's own device by WebGPU, and checks it in float64.

What to run (texts, launches, order of the arguments) stands in the page, made by docs/pages/browser_kernel.py.
Every run draws new random inputs, fills outputs with not-a-number and, if wanted, workgroup memory with rubbish. */

(() => {
  const part = (name) => document.getElementById(`webgpu-${name}`);
  if (!part("facts")) return;
  const facts = JSON.parse(part("facts").textContent);
  const RUBBISH = { f32: "1e30f", f16: "60000h", i32: "2147483647i", u32: "4294967295u" };
  const LIMITS = [
    "maxComputeInvocationsPerWorkgroup",
    "maxComputeWorkgroupSizeX",
    "maxComputeWorkgroupStorageSize",
    "maxStorageBufferBindingSize",
  ];
  const LONG_ENOUGH = 40; // milliseconds a timing should take
  const MOST_LAUNCHES = 256;
  const INSECURE =
    "The browser gives WebGPU only to pages from https, from localhost or from a file; " +
    "this page came otherwise.";
  const NO_WEBGPU =
    "This browser has no WebGPU, so nothing can run here. A current Chrome, Edge or Safari has it; " +
    "the text below is the kernel all the same.";
  const NO_ADAPTER =
    "This browser has WebGPU and finds no device that it trusts. On Linux, chrome://gpu says why, " +
    "and the flag chrome://flags/#enable-unsafe-webgpu lets it try all the same.";
  const LOST = "The device was lost, as happens when a kernel never ends. Run again to open it anew.";

  /** Something to tell the reader, in one sentence; `lines` are a compiler's messages. */
  class Told extends Error {
    constructor(sentence, lines = []) {
      super(sentence);
      this.lines = lines;
    }
  }

  /** A message that belongs to no line of the text. */
  const nowhere = ({ message }) => ({ line: 0, column: 0, message });

  // --- numbers ---------------------------------------------------------------------------------

  function roundEven(value) {
    const down = Math.floor(value),
      rest = value - down;
    return rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down;
  }

  /** The 16 bits of the float16 nearest to a number. */
  function toHalf(value) {
    const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0,
      size = Math.abs(value);
    if (Number.isNaN(size)) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    if (size < 2 ** -14) return sign | roundEven(size * 2 ** 24);
    let exponent = Math.floor(Math.log2(size));
    if (2 ** exponent > size) exponent -= 1;
    if (2 ** (exponent + 1) <= size) exponent += 1;
    return sign | (((exponent + 15) << 10) + roundEven((size / 2 ** exponent - 1) * 1024));
  }

  function fromHalf(bits) {
    const sign = bits & 0x8000 ? -1 : 1,
      exponent = (bits >> 10) & 31,
      rest = bits & 1023;
    if (exponent === 31) return rest ? NaN : sign * Infinity;
    return sign * (exponent ? (1 + rest / 1024) * 2 ** (exponent - 15) : rest * 2 ** -24);
  }

  const FORMATS = {
    float32: {
      bytes: 4,
      last: 2 ** -23,
      least: 2 ** -126,
      nan: 0x7fc00000,
      round: Math.fround,
      words: Uint32Array,
      encode: (numbers) => Float32Array.from(numbers),
      decode: (buffer) => new Float32Array(buffer),
    },
    float16: {
      bytes: 2,
      last: 2 ** -10,
      least: 2 ** -14,
      nan: 0x7e00,
      round: (value) => fromHalf(toHalf(value)),
      words: Uint16Array,
      encode: (numbers) => Uint16Array.from(numbers, toHalf),
      decode: (buffer) => Float64Array.from(new Uint16Array(buffer), fromHalf),
    },
  };

  /** `count` numbers, normally distributed about `middle`, rounded to the dtype. */
  function random(count, middle, format) {
    const numbers = new Float64Array(count);
    for (let i = 0; i < count; i += 2) {
      const radius = Math.sqrt(-2 * Math.log(1 - Math.random())),
        angle = 2 * Math.PI * Math.random();
      numbers[i] = format.round(middle + radius * Math.cos(angle));
      if (i + 1 < count) numbers[i + 1] = format.round(middle + radius * Math.sin(angle));
    }
    return numbers;
  }

  /** A part of a whole, where 0 of 0 is 0. */
  const share = (part, whole) => part && part / whole;

  /** How far the outputs are from float64: wrong rows, the largest error as a share of a row's largest value.

  offs: the same for each row, 0 for a right one and NaN for one with elements that are not numbers. */
  function judge(inputs, outputs, kernel) {
    const { hidden, epsilon } = facts,
      format = FORMATS[kernel.dtype];
    const total = new Float64Array(hidden),
      rows = inputs.x1.length / hidden;
    const verdict = { rows, wrong: 0, norm: 0, sums: 0, missing: 0, offs: [] };
    for (let row = 0; row < rows; row++) {
      let [squares, largest, error, lost] = [0, 0, 0, false];
      let [largestSum, sumError] = [0, 0];
      for (let h = 0, i = row * hidden; h < hidden; h++, i++) {
        total[h] = format.round(inputs.x1[i] + inputs.x2[i]); // the next layer reads the sum rounded
        squares += total[h] * total[h];
        const off = Math.abs(outputs.total[i] - total[h]);
        // a device may round to either neighbour, and take what is below the least normal number for 0
        if (!(off <= Math.max(Math.abs(total[h]) * format.last, format.least))) {
          verdict.sums += 1;
          sumError = Math.max(sumError, off); // NaN if one is
        }
        largestSum = Math.max(largestSum, Math.abs(total[h]));
      }
      const scale = 1 / Math.sqrt(squares / hidden + epsilon);
      for (let h = 0, i = row * hidden; h < hidden; h++, i++) {
        const exact = total[h] * scale * inputs.weight[h],
          off = Math.abs(outputs.norm[i] - exact);
        if (Number.isNaN(off)) {
          verdict.missing += 1;
          lost = true;
        }
        largest = Math.max(largest, Math.abs(exact));
        error = Number.isNaN(off) ? error : Math.max(error, off);
      }
      verdict.norm = Math.max(verdict.norm, error / largest);
      const wrong = sumError !== 0 || lost || !(error <= kernel.tolerance * largest);
      if (wrong) verdict.wrong += 1;
      const off = lost ? NaN : Math.max(share(error, largest), share(sumError, largestSum));
      verdict.offs.push(wrong ? off : 0);
    }
    return verdict;
  }

  // --- the map of wrong rows -------------------------------------------------------------------

  const MOST_SPANS = 6; // runs of wrong rows that are named
  // [class, what the legend says, the largest error as a share of the row's largest value]
  const LEVELS = [
    ["right", "right", 0],
    ["little", "off by up to 1 %", 0.01],
    ["some", "off by up to 10 %", 0.1],
    ["much", "off by up to 100 %", 1],
    ["wild", "off by more than 100 %", Infinity],
    ["lost", "with elements that are not a number", NaN],
  ];

  const levelOf = (off) =>
    Number.isNaN(off) ? LEVELS.length - 1 : LEVELS.findIndex(([, , largest]) => off <= largest);

  const rowSays = (row, off) => {
    if (off === 0) return `Row ${row} is right.`;
    if (Number.isNaN(off)) return `Row ${row} has elements that are not a number.`;
    const share = 100 * off >= 0.1 ? (100 * off).toPrecision(3) : (100 * off).toExponential(1);
    return `Row ${row} is off by up to ${share} % of its largest value.`;
  };

  /** The rows in words, such as "0 to 15, 32"; beyond MOST_SPANS runs of neighbours, the first of them. */
  function spans(rows) {
    const found = [];
    for (const row of rows) {
      if (found.length && found.at(-1)[1] === row - 1) found.at(-1)[1] = row;
      else found.push([row, row]);
    }
    const told = found.slice(0, MOST_SPANS).map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`));
    return `${told.join(", ")}${found.length > MOST_SPANS ? ", …" : ""}`;
  }

  /** Draw a map of the rows of a result in `place`: a cell per row, darker where the row is further off. A line says which
  rows are wrong, and how far the worst is off, which is marked.

  offs: for each row, how far it is off: 0 if it is right, NaN if elements are not numbers. */
  function drawMap(place, offs) {
    const columns = Math.ceil(Math.sqrt(offs.length));
    const cell = (row) => [row % columns, Math.floor(row / columns)];
    const rows = LEVELS.map((_, level) => offs.flatMap((off, row) => (levelOf(off) === level ? [row] : [])));
    const shown = LEVELS.map(([name, words], n) => ({ name, words: `${rows[n].length} ${words}`, rows: rows[n] }));
    const found = shown.filter((level) => level.rows.length);
    const wrong = rows.slice(1).flat().sort((a, b) => a - b);
    const furthest = (one, row) => (levelOf(offs[row]) > levelOf(offs[one]) || offs[row] > offs[one] ? row : one);
    const worst = wrong.reduce(furthest, wrong[0] ?? 0);
    const square = ([x, y]) => `M${x + 0.06} ${y + 0.06}h.88v.88h-.88z`;
    const paths = found.map(({ name, rows }) => `<path class="row-map-${name}" d="${rows.map(cell).map(square).join("")}"/>`);
    const [x, y] = cell(worst);
    place.innerHTML = `<p>Which rows are wrong: a cell per row, the first at the top left.</p>
      <svg viewBox="0 0 ${columns} ${Math.ceil(offs.length / columns)}" role="img"
        aria-label="Rows of the result: ${found.map(({ words }) => words).join(", ")}">${paths.join("")}
        <rect class="row-map-here" x="${x}" y="${y}" width="1" height="1"/></svg>
      <p class="row-map-where">${wrong.length > 1 ? `Wrong: rows ${spans(wrong)}. ` : ""}${rowSays(worst, offs[worst])}</p>
      <ul>${found.map(({ name, words }) => `<li><i class="row-map-${name}"></i>${words}</li>`).join("")}</ul>`;
  }

  // --- the device ------------------------------------------------------------------------------

  let opened = null;

  /** The device and its adapter's name; opened once. Throws Told where there is none. */
  function open() {
    opened ??= request().catch((error) => {
      opened = null;
      throw error;
    });
    return opened;
  }

  async function request() {
    if (!window.isSecureContext) throw new Told(INSECURE);
    if (!navigator.gpu) throw new Told(NO_WEBGPU);
    const adapter = await navigator.gpu.requestAdapter();
    if (!adapter) throw new Told(NO_ADAPTER);
    const half = adapter.features.has("shader-f16");
    const device = await adapter.requestDevice({
      requiredFeatures: half ? ["shader-f16"] : [],
      requiredLimits: Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]])),
    });
    const { description, vendor, architecture } = adapter.info ?? {};
    const maker = [vendor, architecture].filter(Boolean).join(" ");
    const name = description || maker || "a device without a name";
    const found = { device, half, name, lost: null };
    found.gone = device.lost.then(({ message }) => {
      opened = null;
      throw new Told(`${LOST} ${message}`);
    });
    found.gone.catch(() => {}); // told to whoever waits for a run
    return found;
  }

  /** How the arguments are bound: the buffers in the kernel's order, then the scalars. */
  function layoutOf({ device }, kernel) {
    const types = kernel.buffers.map((one) => (one.writable ? "storage" : "read-only-storage"));
    const visibility = GPUShaderStage.COMPUTE;
    const entry = (type, binding) => ({ binding, visibility, buffer: { type } });
    return device.createBindGroupLayout({ entries: [...types, "uniform"].map(entry) });
  }

  /** A pipeline; throws Told with the compiler's errors and the lines they are on. */
  async function compile({ device }, kernel, layout, code) {
    device.pushErrorScope("validation");
    const module = device.createShaderModule({ code });
    const { messages } = await module.getCompilationInfo();
    const errors = messages
      .filter(({ type }) => type === "error")
      .map(({ lineNum, linePos, message }) => ({ line: lineNum, column: linePos, message }));
    let pipeline = null;
    if (!errors.length) {
      const compute = { module, entryPoint: kernel.entry };
      const made = { layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute };
      const failed = (error) => errors.push(nowhere(error));
      pipeline = await device.createComputePipelineAsync(made).catch(failed);
    }
    await device.popErrorScope(); // what it holds has been told above
    if (errors.length) throw new Told("The browser's compiler refuses this text.", errors);
    return pipeline;
  }

  /** `code` with all workgroup memory filled before its first statement; null where there is none to fill. */
  function withRubbish(code, entry) {
    const arrays = [...code.matchAll(/var<workgroup> (\w+) : array<(f32|f16|i32|u32), (\d+)>;/g)];
    const size = /@workgroup_size\((\d+), (\d+), (\d+)\)/.exec(code);
    const body = code.indexOf("{\n", code.indexOf(`fn ${entry}(`));
    if (!arrays.length || !size || body < 0) return null;
    const threads = size[1] * size[2] * size[3];
    const flat = `(threadIdx.z * ${size[2]}u + threadIdx.y) * ${size[1]}u + threadIdx.x`;
    const fill = arrays.map(
      ([, name, type, count]) =>
        `  for (var i = ${flat}; i < ${count}u; i += ${threads}u) { ${name}[i] = ${RUBBISH[type]}; }\n`,
    );
    return `${code.slice(0, body + 2)}${fill.join("")}  workgroupBarrier();\n${code.slice(body + 2)}`;
  }

  /** All arguments on the device: buffers in the kernel's order, and the group that binds them. */
  function place({ device }, layout, kernel, launch, inputs) {
    const { STORAGE, COPY_SRC, COPY_DST, UNIFORM } = GPUBufferUsage,
      format = FORMATS[kernel.dtype];
    const count = launch.rows * facts.hidden;
    const made = (data, usage) => {
      const size = (data.byteLength + 3) & ~3;
      const buffer = device.createBuffer({ size, usage: usage | COPY_DST });
      device.queue.writeBuffer(buffer, 0, data);
      return buffer;
    };
    const start = (name) =>
      name in inputs ? format.encode(inputs[name]) : new format.words(count).fill(format.nan);
    const buffers = kernel.buffers.map(({ name }) => made(start(name), STORAGE | COPY_SRC));
    const scalars = new Int32Array((launch.scalars.length + 3) & ~3);
    scalars.set(launch.scalars);
    buffers.push(made(scalars, UNIFORM));
    const entries = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
    return { buffers, group: device.createBindGroup({ layout, entries }) };
  }

  function launched(encoder, pipeline, { group }, launch, times) {
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    for (let n = 0; n < times; n++) pass.dispatchWorkgroups(...launch.grid);
    pass.end();
  }

  /** The outputs of one launch, by name. */
  async function results({ device }, pipeline, placed, kernel, launch) {
    const { MAP_READ, COPY_DST } = GPUBufferUsage;
    const encoder = device.createCommandEncoder(),
      taken = [];
    launched(encoder, pipeline, placed, launch, 1);
    kernel.buffers.forEach(({ name, writable }, n) => {
      if (!writable) return;
      const { size } = placed.buffers[n];
      const buffer = device.createBuffer({ size, usage: MAP_READ | COPY_DST });
      encoder.copyBufferToBuffer(placed.buffers[n], 0, buffer, 0, size);
      taken.push([name, buffer]);
    });
    device.queue.submit([encoder.finish()]);
    const outputs = {};
    for (const [name, buffer] of taken) {
      await buffer.mapAsync(GPUMapMode.READ);
      outputs[name] = FORMATS[kernel.dtype].decode(buffer.getMappedRange().slice(0));
      buffer.destroy();
    }
    return outputs;
  }

  /** Milliseconds a launch by the clock on the wall, over as many launches as make the measurement long enough. */
  async function timed({ device }, pipeline, placed, launch) {
    for (let times = 1; ; times = Math.min(MOST_LAUNCHES, times * 4)) {
      const encoder = device.createCommandEncoder();
      launched(encoder, pipeline, placed, launch, times);
      const work = encoder.finish(),
        before = performance.now();
      device.queue.submit([work]);
      await device.queue.onSubmittedWorkDone();
      const taken = performance.now() - before;
      if (taken >= LONG_ENOUGH || times === MOST_LAUNCHES) return { each: taken / times, times };
    }
  }

  /** Throws what explains a failed run best: on a lost device every call fails, with words of its own. */
  async function whyNot(error, gpu) {
    if (!(error instanceof Told)) {
      await Promise.race([gpu.gone, new Promise((passed) => setTimeout(passed, 1000))]);
    }
    throw error;
  }

  /** One run: checked with rubbish in workgroup memory, timed without. */
  async function run(kernel, launch, code, rubbish) {
    const gpu = await open(),
      format = FORMATS[kernel.dtype],
      count = launch.rows * facts.hidden;
    if (kernel.dtype === "float16" && !gpu.half) {
      throw new Told(`${gpu.name} offers no float16 to WebGPU (feature shader-f16); take float32.`);
    }
    const work = async () => {
      const layout = layoutOf(gpu, kernel);
      const plain = await compile(gpu, kernel, layout, code);
      const filled = rubbish ? withRubbish(code, kernel.entry) : null;
      const checked = filled === null ? plain : await compile(gpu, kernel, layout, filled);
      const inputs = {
        x1: random(count, 0.5, format),
        x2: random(count, -0.25, format),
        weight: random(facts.hidden, 1, format),
      };
      gpu.device.pushErrorScope("validation");
      const placed = place(gpu, layout, kernel, launch, inputs);
      const outputs = await results(gpu, checked, placed, kernel, launch);
      const error = await gpu.device.popErrorScope();
      if (error) throw new Told("The browser refuses the launch.", [nowhere(error)]);
      const time = await timed(gpu, plain, placed, launch);
      placed.buffers.forEach((buffer) => buffer.destroy());
      return { ...judge(inputs, outputs, kernel), ...time, filled: filled !== null };
    };
    return Promise.race([work().catch((error) => whyNot(error, gpu)), gpu.gone]);
  }

  // --- the page --------------------------------------------------------------------------------

  const choices = { dtype: part("dtype"), fault: part("fault"), rows: part("rows") };
  const [text, verdict, device] = ["text", "verdict", "device"].map(part);
  let runs = 0;

  const chosen = () => {
    const kernel = facts.kernels[+choices.dtype.value],
      launch = kernel.launches[+choices.rows.value],
      number = +choices.fault.value;
    return { kernel, launch, fault: facts.faults[number], given: kernel.texts[number] };
  };
  const edited = () => text.value !== chosen().given;

  function shown() {
    const { fault } = chosen();
    const changed = `Edited by you. It began as: ${fault.title}.`;
    part("says").textContent = edited() ? changed : fault.says;
    part("reset").disabled = !edited();
  }

  function fresh() {
    text.value = chosen().given;
    text.scrollTop = 0;
    shown();
  }

  function element(tag, words, parent) {
    const made = document.createElement(tag);
    made.textContent = words;
    parent.append(made);
    return made;
  }

  const add = (sentence) => element("p", sentence, verdict);

  const percent = (share) =>
    share >= 1e-3 ? `${(100 * share).toPrecision(3)} %` : share.toExponential(1);

  const duration = (ms) =>
    ms >= 1 ? `${+ms.toPrecision(3)} ms` : `${+(1e3 * ms).toPrecision(3)} µs`;
  const many = (count, one, more) => `${count} ${count === 1 ? one : more}`;

  function tell(state, sentences, lines = []) {
    verdict.className = `webgpu-verdict webgpu-${state}`;
    verdict.replaceChildren();
    sentences.filter(Boolean).forEach(add);
    verdict.firstChild.classList.add("webgpu-first");
    if (!lines.length) return;
    const list = element("ul", "", verdict);
    for (const { line, column, message } of lines) {
      const item = element("li", "", list);
      if (line) {
        const button = element("button", `line ${line}`, item);
        button.type = "button";
        button.addEventListener("click", () => select(line, column));
        item.append(": ");
      }
      item.append(message);
    }
  }

  function select(line, column) {
    const lines = text.value.split("\n"),
      start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(start + Math.max(0, column - 1), start + lines[line - 1].length);
    text.scrollTop = (text.scrollHeight / lines.length) * Math.max(0, line - 6);
  }

  function explain(result, { kernel, fault }, wasEdited) {
    const { rows, wrong, norm, sums, missing, offs } = result;
    const allowed = `${percent(kernel.tolerance)} of a row's largest value is allowed`;
    if (!wrong) {
      const raced = fault.races && !wasEdited;
      tell(raced ? "lucky" : "right", [
        `Right numbers: all ${rows} rows agree with float64. Largest error ${percent(norm)}; ${allowed}.`,
        raced &&
          "And still wrong code: here the threads happened to run in an order that hides the missing " +
            "barrier. Run it again, with other rows; another device, driver or browser may show it at once.",
      ]);
      return;
    }
    tell("wrong", [
      `Wrong numbers: ${wrong} of ${rows} rows differ from float64.`,
      `Largest error ${percent(norm)} of a row's largest value; ${allowed}.`,
      missing > 0 &&
        `Of norm, ${many(missing, "element is", "elements are")} not a number, as all were before the launch.`,
      sums > 0 && `Of the sum, ${many(sums, "element is", "elements are")} wrong.`,
    ]);
    drawMap(part("map"), offs);
    part("map").hidden = false;
  }

  function record(result, { kernel, fault, launch }, wasEdited) {
    const moved = (4 * launch.rows + 1) * facts.hidden * FORMATS[kernel.dtype].bytes;
    runs += 1;
    const row = document.createElement("tr");
    const ran = [runs, kernel.dtype, wasEdited ? "edited" : fault.title, launch.rows];
    const found = [result.wrong, percent(result.norm), duration(result.each)];
    const speed = (moved / result.each / 1e6).toPrecision(3);
    [...ran, ...found, speed].forEach((cell) => element("td", cell, row));
    part("runs").tBodies[0].prepend(row);
    part("runs").hidden = false;
  }

  async function pressed() {
    const picked = chosen(),
      wasEdited = edited();
    part("run").disabled = true;
    part("map").hidden = true;
    tell("running", ["Running …"]);
    try {
      const result = await run(picked.kernel, picked.launch, text.value, part("rubbish").checked);
      explain(result, picked, wasEdited);
      if (part("rubbish").checked && !result.filled) {
        add("Workgroup memory was not filled: the text has no array of it in the form that TVM writes.");
      }
      const times = many(result.times, "launch", "launches");
      add(`Timed over ${times} of the text as it stands, by the clock on the wall.`);
      record(result, picked, wasEdited);
    } catch (error) {
      const told = error instanceof Told;
      if (!told) console.error(error);
      tell("refused", [told ? error.message : `The run failed: ${error.message}`], error.lines);
    } finally {
      part("run").disabled = false;
    }
  }

  choices.dtype.addEventListener("change", fresh);
  choices.fault.addEventListener("change", fresh);
  text.addEventListener("input", shown);
  part("reset").addEventListener("click", fresh);
  part("run").addEventListener("click", pressed);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !part("run").disabled) {
      event.preventDefault();
      pressed();
    }
  });
  window.kernelInBrowser = { toHalf, fromHalf, judge, drawMap, facts }; // for the console, and for tests

  fresh(); // a browser may have kept an earlier visit's choices
  device.textContent = "Looking for a WebGPU device …";
  open().then(
    ({ name, half }) => {
      device.textContent = `WebGPU runs on: ${name}, float16 ${half ? "included" : "not offered"}.`;
      part("run").disabled = false;
    },
    (error) => {
      device.textContent = error.message;
      device.classList.add("webgpu-none");
    },
  );
})();
