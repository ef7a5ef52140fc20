/* Runs the WGSL of docs/webgpu.md on the reader's own device by WebGPU, and checks it in float64.

What to run (texts, launches, order of the arguments) stands in the page, made by docs/pages/browser_kernel.py.
Every run draws new random inputs, fills outputs with not-a-number and, if wanted, workgroup memory with poison. */

(() => {
  const part = (name) => document.getElementById(`webgpu-${name}`);
  if (!part("facts")) return;
  const facts = JSON.parse(part("facts").textContent);
  const POISON = { f32: "1e30f", f16: "60000h", i32: "2147483647i", u32: "4294967295u" };
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

  /** What a reader is told, in one sentence; `lines` are a compiler's messages. */
  class UserError extends Error {
    constructor(sentence, lines = []) {
      super(sentence);
      this.lines = lines;
    }
  }

  /** A message that belongs to no line of the text. */
  const withoutLine = ({ message }) => ({ line: 0, column: 0, message });

  // --- numbers ---------------------------------------------------------------------------------

  const FORMATS = {
    float32: {
      last: 2 ** -23,
      least: 2 ** -126,
      round: Math.fround,
      array: Float32Array,
    },
    float16: {
      last: 2 ** -10,
      least: 2 ** -14,
      round: Math.f16round,
      array: window.Float16Array, // undefined in browsers older than 2025
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

  const describeRow = (row, off) => {
    if (off === 0) return `Row ${row} is right.`;
    if (Number.isNaN(off)) return `Row ${row} has elements that are not a number.`;
    const share = 100 * off >= 0.1 ? (100 * off).toPrecision(3) : (100 * off).toExponential(1);
    return `Row ${row} is off by up to ${share} % of its largest value.`;
  };

  /** The rows in words, such as "0 to 15, 32"; beyond MOST_SPANS runs of neighbours, the first of them. */
  function listRows(rows) {
    const found = [];
    for (const row of rows) {
      if (found.length && found.at(-1)[1] === row - 1) found.at(-1)[1] = row;
      else found.push([row, row]);
    }
    const texts = found.slice(0, MOST_SPANS).map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`));
    return `${texts.join(", ")}${found.length > MOST_SPANS ? ", …" : ""}`;
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
      <p class="row-map-where">${wrong.length > 1 ? `Wrong: rows ${listRows(wrong)}. ` : ""}${describeRow(worst, offs[worst])}</p>
      <ul>${found.map(({ name, words }) => `<li><i class="row-map-${name}"></i>${words}</li>`).join("")}</ul>`;
  }

  // --- the device ------------------------------------------------------------------------------

  let opened = null;

  /** The device and its adapter's name; opened once. Throws UserError where there is none. */
  function openDevice() {
    opened ??= requestDevice().catch((error) => {
      opened = null;
      throw error;
    });
    return opened;
  }

  async function requestDevice() {
    if (!window.isSecureContext) throw new UserError(INSECURE);
    if (!navigator.gpu) throw new UserError(NO_WEBGPU);
    const adapter = await navigator.gpu.requestAdapter();
    if (!adapter) throw new UserError(NO_ADAPTER);
    const half = adapter.features.has("shader-f16") && "Float16Array" in window;
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
      throw new UserError(`${LOST} ${message}`);
    });
    found.gone.catch(() => {}); // told to whoever waits for a run
    return found;
  }

  /** How the arguments are bound: the buffers in the kernel's order, then the scalars. */
  function createLayout({ device }, kernel) {
    const types = kernel.buffers.map((one) => (one.writable ? "storage" : "read-only-storage"));
    const visibility = GPUShaderStage.COMPUTE;
    const entry = (type, binding) => ({ binding, visibility, buffer: { type } });
    return device.createBindGroupLayout({ entries: [...types, "uniform"].map(entry) });
  }

  /** A pipeline; throws UserError with the compiler's errors and the lines they are on. */
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
      const failed = (error) => errors.push(withoutLine(error));
      pipeline = await device.createComputePipelineAsync(made).catch(failed);
    }
    await device.popErrorScope(); // what it holds has been told above
    if (errors.length) throw new UserError("The browser's compiler refuses this text.", errors);
    return pipeline;
  }

  /** `code` with all workgroup memory filled before its first statement; null where there is none to fill. */
  function fillWorkgroupMemory(code, entry) {
    const arrays = [...code.matchAll(/var<workgroup> (\w+) : array<(f32|f16|i32|u32), (\d+)>;/g)];
    const size = /@workgroup_size\((\d+), (\d+), (\d+)\)/.exec(code);
    const body = code.indexOf("{\n", code.indexOf(`fn ${entry}(`));
    if (!arrays.length || !size || body < 0) return null;
    const threads = size[1] * size[2] * size[3];
    const flat = `(threadIdx.z * ${size[2]}u + threadIdx.y) * ${size[1]}u + threadIdx.x`;
    const fill = arrays.map(
      ([, name, type, count]) =>
        `  for (var i = ${flat}; i < ${count}u; i += ${threads}u) { ${name}[i] = ${POISON[type]}; }\n`,
    );
    return `${code.slice(0, body + 2)}${fill.join("")}  workgroupBarrier();\n${code.slice(body + 2)}`;
  }

  /** All arguments on the device: buffers in the kernel's order, and the group that binds them. */
  function createArguments({ device }, layout, kernel, launch, inputs) {
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
      name in inputs ? format.array.from(inputs[name]) : new format.array(count).fill(NaN);
    const buffers = kernel.buffers.map(({ name }) => made(start(name), STORAGE | COPY_SRC));
    const scalars = new Int32Array((launch.scalars.length + 3) & ~3);
    scalars.set(launch.scalars);
    buffers.push(made(scalars, UNIFORM));
    const entries = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
    return { buffers, group: device.createBindGroup({ layout, entries }) };
  }

  function encodeLaunches(encoder, pipeline, { group }, launch, times) {
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    for (let n = 0; n < times; n++) pass.dispatchWorkgroups(...launch.grid);
    pass.end();
  }

  /** The outputs of one launch, by name. */
  async function readOutputs({ device }, pipeline, placed, kernel, launch) {
    const { MAP_READ, COPY_DST } = GPUBufferUsage;
    const encoder = device.createCommandEncoder(),
      taken = [];
    encodeLaunches(encoder, pipeline, placed, launch, 1);
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
      outputs[name] = new FORMATS[kernel.dtype].array(buffer.getMappedRange().slice(0));
      buffer.destroy();
    }
    return outputs;
  }

  /** Milliseconds a launch by the clock on the wall, over as many launches as make the measurement long enough. */
  async function measureTime({ device }, pipeline, placed, launch) {
    for (let times = 1; ; times = Math.min(MOST_LAUNCHES, times * 4)) {
      const encoder = device.createCommandEncoder();
      encodeLaunches(encoder, pipeline, placed, launch, times);
      const work = encoder.finish(),
        before = performance.now();
      device.queue.submit([work]);
      await device.queue.onSubmittedWorkDone();
      const taken = performance.now() - before;
      if (taken >= LONG_ENOUGH || times === MOST_LAUNCHES) return { each: taken / times, times };
    }
  }

  /** Throws what explains a failed run best: on a lost device every call fails, with words of its own. */
  async function throwCause(error, gpu) {
    if (!(error instanceof UserError)) {
      await Promise.race([gpu.gone, new Promise((passed) => setTimeout(passed, 1000))]);
    }
    throw error;
  }

  /** One run: checked with poison in workgroup memory, timed without. */
  async function runKernel(kernel, launch, code, poison) {
    const gpu = await openDevice(),
      format = FORMATS[kernel.dtype],
      count = launch.rows * facts.hidden;
    if (kernel.dtype === "float16" && !gpu.half) {
      const lacks = `${gpu.name} offers no float16 to WebGPU (feature shader-f16)`;
      throw new UserError(`${"Float16Array" in window ? lacks : "This browser has no Float16Array"}; take float32.`);
    }
    const work = async () => {
      const layout = createLayout(gpu, kernel);
      const plain = await compile(gpu, kernel, layout, code);
      const filled = poison ? fillWorkgroupMemory(code, kernel.entry) : null;
      const checked = filled === null ? plain : await compile(gpu, kernel, layout, filled);
      const inputs = {
        x1: random(count, 0.5, format),
        x2: random(count, -0.25, format),
        weight: random(facts.hidden, 1, format),
      };
      gpu.device.pushErrorScope("validation");
      const placed = createArguments(gpu, layout, kernel, launch, inputs);
      const outputs = await readOutputs(gpu, checked, placed, kernel, launch);
      const error = await gpu.device.popErrorScope();
      if (error) throw new UserError("The browser refuses the launch.", [withoutLine(error)]);
      const time = await measureTime(gpu, plain, placed, launch);
      placed.buffers.forEach((buffer) => buffer.destroy());
      return { ...judge(inputs, outputs, kernel), ...time, filled: filled !== null };
    };
    return Promise.race([work().catch((error) => throwCause(error, gpu)), gpu.gone]);
  }

  // --- the page --------------------------------------------------------------------------------

  const choices = { dtype: part("dtype"), fault: part("fault"), rows: part("rows") };
  const [text, verdict, device] = ["text", "verdict", "device"].map(part);
  let runs = 0;

  const readChoices = () => {
    const kernel = facts.kernels[+choices.dtype.value],
      launch = kernel.launches[+choices.rows.value],
      number = +choices.fault.value;
    return { kernel, launch, fault: facts.faults[number], given: kernel.texts[number] };
  };
  const isEdited = () => text.value !== readChoices().given;

  function showState() {
    const { fault } = readChoices();
    const changed = `Edited by you. It began as: ${fault.title}.`;
    part("says").textContent = isEdited() ? changed : fault.says;
    part("reset").disabled = !isEdited();
  }

  function resetText() {
    text.value = readChoices().given;
    text.scrollTop = 0;
    showState();
  }

  function appendElement(tag, words, parent) {
    const made = document.createElement(tag);
    made.textContent = words;
    parent.append(made);
    return made;
  }

  const add = (sentence) => appendElement("p", sentence, verdict);

  const formatPercent = (share) =>
    share >= 1e-3 ? `${(100 * share).toPrecision(3)} %` : share.toExponential(1);

  const formatDuration = (ms) =>
    ms >= 1 ? `${+ms.toPrecision(3)} ms` : `${+(1e3 * ms).toPrecision(3)} µs`;
  const countNoun = (count, one, more) => `${count} ${count === 1 ? one : more}`;

  function showVerdict(state, sentences, lines = []) {
    verdict.className = `webgpu-verdict webgpu-${state}`;
    verdict.replaceChildren();
    sentences.filter(Boolean).forEach(add);
    verdict.firstChild.classList.add("webgpu-first");
    if (!lines.length) return;
    const list = appendElement("ul", "", verdict);
    for (const { line, column, message } of lines) {
      const item = appendElement("li", "", list);
      if (line) {
        const button = appendElement("button", `line ${line}`, item);
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

  function explainResult(result, { kernel, fault }, wasEdited) {
    const { rows, wrong, norm, sums, missing, offs } = result;
    const allowed = `${formatPercent(kernel.tolerance)} of a row's largest value is allowed`;
    if (!wrong) {
      const raced = fault.races && !wasEdited;
      showVerdict(raced ? "lucky" : "right", [
        `Right numbers: all ${rows} rows agree with float64. Largest error ${formatPercent(norm)}; ${allowed}.`,
        raced &&
          "And still wrong code: here the threads happened to run in an order that hides the missing " +
            "barrier. Run it again, with other rows; another device, driver or browser may show it at once.",
      ]);
      return;
    }
    showVerdict("wrong", [
      `Wrong numbers: ${wrong} of ${rows} rows differ from float64.`,
      `Largest error ${formatPercent(norm)} of a row's largest value; ${allowed}.`,
      missing > 0 &&
        `Of norm, ${countNoun(missing, "element is", "elements are")} not a number, as all were before the launch.`,
      sums > 0 && `Of the sum, ${countNoun(sums, "element is", "elements are")} wrong.`,
    ]);
    drawMap(part("map"), offs);
    part("map").hidden = false;
  }

  function addRun(result, { kernel, fault, launch }, wasEdited) {
    const moved = (4 * launch.rows + 1) * facts.hidden * FORMATS[kernel.dtype].array.BYTES_PER_ELEMENT;
    runs += 1;
    const row = document.createElement("tr");
    const ran = [runs, kernel.dtype, wasEdited ? "edited" : fault.title, launch.rows];
    const found = [result.wrong, formatPercent(result.norm), formatDuration(result.each)];
    const speed = (moved / result.each / 1e6).toPrecision(3);
    [...ran, ...found, speed].forEach((cell) => appendElement("td", cell, row));
    part("runs").tBodies[0].prepend(row);
    part("runs").hidden = false;
  }

  async function runAndShow() {
    const picked = readChoices(),
      wasEdited = isEdited();
    part("run").disabled = true;
    part("map").hidden = true;
    showVerdict("running", ["Running …"]);
    try {
      const result = await runKernel(picked.kernel, picked.launch, text.value, part("poison").checked);
      explainResult(result, picked, wasEdited);
      if (part("poison").checked && !result.filled) {
        add("Workgroup memory was not filled: the text has no array of it in the form that TVM writes.");
      }
      const times = countNoun(result.times, "launch", "launches");
      add(`Timed over ${times} of the text as it stands, by the clock on the wall.`);
      addRun(result, picked, wasEdited);
    } catch (error) {
      const known = error instanceof UserError;
      if (!known) console.error(error);
      showVerdict("refused", [known ? error.message : `The run failed: ${error.message}`], error.lines);
    } finally {
      part("run").disabled = false;
    }
  }

  choices.dtype.addEventListener("change", resetText);
  choices.fault.addEventListener("change", resetText);
  text.addEventListener("input", showState);
  part("reset").addEventListener("click", resetText);
  part("run").addEventListener("click", runAndShow);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !part("run").disabled) {
      event.preventDefault();
      runAndShow();
    }
  });
  window.kernelInBrowser = { judge, drawMap, facts }; // for the console, and for tests

  resetText(); // a browser may have kept an earlier visit's choices
  device.textContent = "Looking for a WebGPU device …";
  openDevice().then(
    ({ name, half }) => {
      device.textContent = `WebGPU runs on: ${name}, float16 ${half ? "included" : "not available"}.`;
      part("run").disabled = false;
    },
    (error) => {
      device.textContent = error.message;
      device.classList.add("webgpu-none");
    },
  );
})();
