"""Faults of the transformer in five frameworks."""

from benchmarks.diagnosis.suite import InEach, Side

_BFLOAT = "Softmax|softmax|_softmax|Cast|cast|_to_copy|convert_element_type"
FAULTS = (
    InEach(
        "formula",
        "scores not scaled",
        torch=Side("scores", " / math.sqrt(WIDTH // HEADS)", "", "scores: div|matmul|bmm; masked: masked_fill"),
        jax=Side("scores", " / math.sqrt(WIDTH // HEADS)", "", "scores: div|dot_general; masked: select_n|where"),
        tensorflow=Side(
            "scores", " / math.sqrt(WIDTH // HEADS)", "", "scores: RealDiv|BatchMatMulV2; masked: SelectV2"
        ),
        mindspore=Side("scale", " / math.sqrt(WIDTH // HEADS)", "", "scale: *; scores: BatchMatMul; masked: *"),
        onnx=Side(
            "scale",
            "math.sqrt(WIDTH // HEADS)",
            "1.0",
            "*[scaled]: Div; *[scores]: MatMul|FusedMatMul; *[masked]: Where",
        ),
    ),
    InEach(
        "argument",
        "diagonal of the mask",
        torch=Side("mask", ", 1)", ", 2)", "mask: *; masked: masked_fill"),
        jax=Side("mask", "bool))", "bool), 1)", "mask: *; masked: *"),
        tensorflow=Side("mask", "-1, 0)", "-1, 1)", "mask: *; masked: *"),
        mindspore=Side("mask", ", 1)", ", 2)", "masked: *"),
        onnx=Side("mask", "TOKENS)))", "TOKENS)), 1)", "*[masked]: Where"),
    ),
    InEach(
        "argument",
        "epsilon of the norms",
        torch=Side("norms", "1e-5", "1e-3", "residual1,up: native_layer_norm"),
        jax=Side("norm", "1e-5", "1e-3", "norm: add|rsqrt"),
        tensorflow=Side("norm", "1e-5", "1e-3", "norm: AddV2|Rsqrt"),
        mindspore=Side("norm1-init", "1e-5", "1e-3", "residual1,up: LayerNorm"),
        onnx=Side(
            "norm", "1e-5", "1e-3", "*[norm]: LayerNormalization|SkipLayerNormalization|Add; *: SkipLayerNormalization"
        ),
    ),
    InEach(
        "formula",
        "exact GELU",
        torch=Side("gelu", '"tanh"', '"none"', "gelu: *"),
        jax=Side("gelu", "approximate=True", "approximate=False", "gelu: *"),
        tensorflow=Side("gelu", "approximate=True", "approximate=False", "gelu: *"),
        mindspore=Side("gelu", '"tanh"', '"none"', "gelu: *"),
        onnx=Side("gelu", '"tanh"', '"none"', "*[gelu]: *"),
    ),
    InEach(
        "missing",
        "a residual",
        torch=Side("residual2", "x + self", "self", "residual2: add|mm"),
        jax=Side("residual2", "x + h", "h", "residual2: add|dot_general"),
        tensorflow=Side("residual2", "x + tf", "tf", "residual2: AddV2|MatMul|BatchMatMulV2|Reshape"),
        mindspore=Side("residual2", "x + ops", "ops", "*: Add; residual2: *"),
        onnx=Side(
            "residual2",
            'op("Add", x, h,',
            'op("Identity", h,',
            "*[residual2]: *; *[down]: MatMul; *: SkipLayerNormalization",
        ),
    ),
    InEach(
        "cast",
        "softmax in bfloat16",
        torch=Side("softmax", "scores, dim=-1)", "scores.bfloat16(), dim=-1).float()", f"softmax: {_BFLOAT}"),
        jax=Side(
            "softmax",
            "scores, axis=-1)",
            "scores.astype(jnp.bfloat16), axis=-1).astype(jnp.float32)",
            "softmax: *",
        ),
        tensorflow=Side(
            "softmax",
            "tf.nn.softmax(scores)",
            "tf.cast(tf.nn.softmax(tf.cast(scores, tf.bfloat16)), tf.float32)",
            f"softmax: {_BFLOAT}",
        ),
        mindspore=Side(
            "softmax",
            "ops.softmax(scores, -1)",
            "ops.cast(ops.softmax(ops.cast(scores, ms.float16), -1), ms.float32)",
            f"softmax: {_BFLOAT}",
        ),
        onnx=Side(
            "softmax",
            'op("Softmax", scores, name=f"{name}/shares", axis=-1)',
            'op("Cast", op("Softmax", op("Cast", scores, name=f"{name}/to16", to=16), name=f"{name}/shares", axis=-1), name=f"{name}/to32", to=1)',
            "*[shares]: *; *[to16]: Cast; *[to32]: Cast",
        ),
    ),
    InEach(
        "argument",
        "another number of tokens",
        torch=Side("loss", "/ 12", "/ 11", "loss: div|nll_loss_forward"),
        jax=Side("loss", "/ 12", "/ 11", "loss: div|neg|reduce_sum"),
        tensorflow=Side("loss", "/ 12.0", "/ 11.0", "loss: RealDiv|Mul"),
        mindspore=Side("loss", "/ 12", "/ 11", "loss: *"),
        onnx=Side("loss", "12.0", "11.0", "*[loss]: Div; *[negative]: Neg"),
    ),
    InEach(
        "parameter",
        "transposed weight",
        torch=Side("attention-out", "self.out(y)", "y @ self.out.weight", "attention-out: *"),
        jax=Side("attention-out", 'block["out"]', 'block["out"].T', "attention-out: *"),
        tensorflow=Side("attention-out", "self.out)", "self.out, transpose_b=True)", "attention-out: *"),
        mindspore=Side("attention-out", "self.out)", "ops.transpose(self.out, (1, 0)))", "attention-out: *"),
        onnx=Side(
            "attention-out",
            'matrix(f"{name}.out", WIDTH, WIDTH)',
            'op("Transpose", matrix(f"{name}.out", WIDTH, WIDTH), name=f"{name}/turned")',
            "*[/out]: MatMul|FusedMatMul; *[turned]: Transpose",
        ),
    ),
    InEach(
        "slice",
        "keys and values swapped",
        torch=Side("split", "q, k, v =", "q, v, k =", "scores: *; values: *; split: *; qkv: *"),
        jax=Side("split", "q, k, v =", "q, v, k =", "scores: *; values: *; split: *; qkv: *"),
        tensorflow=Side("qkv", "q, k, v =", "q, v, k =", "scores: *; values: *; heads: *; qkv: *"),
        mindspore=Side("qkv", "q, k, v =", "q, v, k =", "scores: *; values: *; heads: *; qkv: *"),
    ),
    InEach(
        "argument",
        "clipped at a half",
        torch=Side("clip", "1.0", "0.5", "clip: * @*"),
        jax=Side("clip", "1.0, 1.0", "1.0, 0.5", "clip: * @*; update: mul @*"),
        tensorflow=Side("clip", "1.0", "0.5", "clip: * @*"),
        mindspore=Side("clip", "1.0", "0.5", "clip: * @*"),
    ),
    InEach(
        "missing",
        "gradients not clipped",
        torch=Side("clip", "1.0", "1e9", "clip: * @*"),
        jax=Side("update", "g * factor", "g", "clip: * @*; update: * @*"),
        tensorflow=Side("clip", "1.0", "1e9", "clip: * @*"),
        mindspore=Side("clip", "1.0", "1e9", "clip: * @*"),
    ),
    InEach(
        "optimizer",
        "decay ten times as large",
        torch=Side("optimizer", "weight_decay=0.01", "weight_decay=0.1", "update: add|add_|_foreach_add @*"),
        jax=Side("update", "0.01", "0.1", "update: mul|add @*"),
        tensorflow=Side("update", "0.01", "0.1", "update: Mul|AddV2 @*"),
        mindspore=Side("decay", "0.01", "0.1", "update: * @*"),
    ),
    InEach(
        "optimizer",
        "another learning rate",
        torch=Side("optimizer", "lr=0.1", "lr=0.11", "update: add|add_|_foreach_add_ @*"),
        jax=Side("update", "0.1 *", "0.11 *", "update: mul|sub @*"),
        tensorflow=Side("update", "0.1 *", "0.11 *", "update: Mul|AssignSubVariableOp @*"),
        mindspore=Side("optimizer", "0.1)", "0.11)", "update: * @*"),
    ),
    InEach(
        "data",
        "targets not shifted",
        torch=Side("shift", "window[:, 1:]", "window[:, :-1]", "loss: nll_loss_forward"),
        jax=Side("shift", "window[:, 1:]", "window[:, :-1]", "pick,loss: *; gradient,call: *"),
        tensorflow=Side(
            "call", "window[:, 1:]", "window[:, :-1]", "losses: SparseSoftmaxCrossEntropyWithLogits; call: *"
        ),
        mindspore=Side("call", "window[:, 1:]", "window[:, :-1]", "loss: *"),
        onnx=Side("run", "window[:, 1:, None]", "window[:, :-1, None]", "*[picked]: GatherElements"),
    ),
)
