"""Classes of operators by how they can overflow.

    moves    creates or moves elements without computing: it cannot overflow
    casts    changes the element type
    cube     multiplies matrices: on a device the CUBE unit does this, and has its own overflow bit
    computes everything else, unknown operators included

Names are those of PyTorch, ONNX, JAX and all frameworks in op_types.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal

from opdump.op_types import bare_name, rows_of

OperatorClass = Literal["moves", "casts", "cube", "computes"]


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_CUBE_CONCEPTS: Final = words(
    """
    Conv1D Conv2D Conv3D DepthwiseConv2dNative Conv2DTranspose Conv3DTranspose Conv2DBackpropInput Conv2DBackpropFilter
    Conv3DBackpropInput Conv3DBackpropFilter DepthwiseConv2dNativeBackpropFilter DeformableConv2d MatMul BatchMatMul Dense Gemm
    Einsum TensorDot GroupedMatmul FlashAttentionScore FlashAttentionScoreGrad
    """
)
# More names of matrix products, in lower case.
_CUBE_NAMES: Final = words(
    """
    _conv_depthwise2d_backward _convolution_double_backward _int_mm _native_multi_head_attention _scaled_dot_product_attention
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward
    _transformer_encoder_layer_fwd _trilinear _weight_int4pack_mm _weight_int8pack_mm addbmm bilinear chain_matmul conv_tbc
    conv_tbc_backward conv_transpose1d conv_depthwise3d convolution_backward_overrideable convolution_overrideable
    cudnn_convolution_add_relu inner linalg_matmul linalg_multi_dot linalg_vecdot linear_backward
    matmul_backward matrix_power linalg_matrix_power mkldnn_convolution_backward mkldnn_linear_backward
    mkldnn_linear_backward_input mkldnn_linear_backward_weights multi_head_attention_forward
    slow_conv_dilated2d slow_conv_dilated3d slow_conv3d_forward sspaddmm thnn_conv2d vdot
    attentionlstm biasgelufusedmatmul convinteger fusedconv fusedgemm fusedmatmul fusedmatmulactivation groupqueryattention
    matmulbnb4 matmulinteger matmulintegertofloat matmulnbits multiheadattention nhwcfusedconv nhwcconv packedattention
    packedmultiheadattention qattention qlinearconv qlinearmatmul transposematmul decodermaskedmultiheadattention
    decodermaskedselfattention longformerattention dynamicquantizematmul qgemm
    """
)
_CASTS: Final = words(
    "_to_copy to cast castlike copy type float half bfloat16 double convert_element_type reduce_precision"
)

_MOVE_CONCEPTS: Final = words(
    """
    TensorMove Concat Stack Unstack Split StridedSlice Transpose Reshape Flatten ExpandDims Squeeze BroadcastTo Tile Pad
    ReflectionPad2D ReplicationPad2D Roll ReverseV2 Tril Triu Diag Meshgrid PixelShuffle PixelUnshuffle Im2Col Fill ZerosLike
    OnesLike Eye RandomNormal RandomUniform RandomInteger Bernoulli Multinomial Randperm Select SelectView NanToNum ClipByValue
    MaxPool MaxPool3D MaxUnpool2D AdaptiveMaxPool2D FractionalMaxPool TopK Sort Unique Cummax Cummin Argmax Argmin AllGather
    Broadcast AlltoAll
    """
)
_MOVE_NAMES: Final = words(
    """
    _adaptive_max_pool3d _copy_from _copy_from_and_resize _efficientzerotensor _empty_affine_quantized
    _empty_per_channel_affine_quantized _local_scalar_dense _reshape_copy _resize_output _to_dense adaptive_max_pool1d
    adaptive_max_pool3d alias alias_copy as_strided as_strided_copy as_strided_scatter atleast_1d block_diag cauchy
    clone column_stack complex constant detach detach_copy diagonal diagonal_copy diagonal_scatter embedding empty
    empty_like empty_permuted empty_quantized empty_strided expand_copy exponential fractional_max_pool3d from_file gather
    geometric index index_copy index_fill index_put index_select lift lift_fresh lift_fresh_copy log_normal masked_fill
    masked_scatter masked_select max_pool1d max_pool1d_with_indices max_pool3d mode movedim narrow narrow_copy new_empty
    new_empty_strided new_full permute_copy poisson polar put quantized_max_pool1d real imag repeat_interleave
    reflection_pad1d reflection_pad3d replication_pad1d replication_pad3d resize resize_as rot90 scalar_tensor scatter
    select_copy select_scatter set slice_scatter standard_gamma swapaxes swapdims take take_along_dim
    unfold_copy unsqueeze_copy view_as view_as_complex view_as_real view_copy view_dtype vstack hstack dstack
    binomial kthvalue max_unpool3d _unsafe_index _unsafe_index_put _unsafe_masked_index copysign tensor
    broadcast wait_tensor all_gather_into_tensor recv recv_any_source send
    arrayfeatureextractor bitcast compress constantofshape depthtospace eyelike gatherelements gathernd globalmaxpool
    if loop scan maxroipool nonmaxsuppression onehot optional optionalgetelement optionalhaselement reversesequence
    scatterelements scatternd sequenceat sequenceconstruct sequenceempty sequenceerase sequenceinsert sequencemap shape size
    concatfromsequence splittosequence spacetodepth tensorscatter centercroppad memcpyfromhost memcpytohost
    reorderinput reorderoutput
    """
)
# Names of TensorFlow, in lower case and with their versions: they pass on the content of variables, data sets, lists,
# arrays, queues and tables.
_MOVES_OF_TENSORFLOW: Final = words(
    """
    readvariableop resourcegather resourcegathernd variable variablev2 destroytemporaryvariable assign assignvariableop restorev2 restore
    iteratorgetnext iteratorgetnextsync iteratorgetnextasoptional optionalgetvalue optionalfromvalue lookuptablefind lookuptablefindv2
    lookuptableexport lookuptableexportv2 lookuptableinsertv2 lookuptableimportv2 queuedequeue queuedequeuev2 queuedequeuemany
    queuedequeuemanyv2 queuedequeueupto queuedequeueuptov2 queueenqueue queueenqueuev2 queueenqueuemany queueenqueuemanyv2 stage unstage
    stackpush stackpushv2 stackpop stackpopv2 tensorarrayread tensorarrayreadv3 tensorarraywrite tensorarraywritev3 tensorarraygatherv3
    tensorarrayscatterv3 tensorarrayconcatv3 tensorarraysplitv3 tensorlistgetitem tensorlistsetitem tensorliststack
    tensorlistfromtensor tensorlistconcatv2 tensorlistgather tensorlistscatterv2 tensorlistpushback tensorlistpopback
    tensorlistsplit identity identityn refidentity snapshot deepcopy ensureshape stopgradient preventgradient const placeholder
    placeholderv2 placeholderwithdefault switch refswitch merge refmerge enter refenter exit refexit nextiteration
    refnextiteration gatherv2 dynamicstitch paralleldynamicstitch dynamicpartition batchtospace batchtospacend spacetobatch
    spacetobatchnd matrixdiag matrixdiagv2 matrixdiagv3 matrixdiagpart matrixdiagpartv3 matrixsetdiagv3 raggedtensortotensor raggedgather
    sparsetodense sparseslice sparsereshape sparsereorder parallelconcat invertpermutation tensorscatterupdate resourcescatterupdate
    scatterupdate stridedsliceassign resourcestridedsliceassign inplaceupdate
    """
)
# Operators that pass on the content of a sequence, an optional, a list, a queue or a table, which no dump contains.
_TAKES_OUT: Final = words(
    """
    sequenceat concatfromsequence optionalgetelement sequencemap optionalgetvalue queuedequeue queuedequeuev2 queuedequeuemany
    queuedequeuemanyv2 queuedequeueupto queuedequeueuptov2 unstage stackpop stackpopv2 tensorarrayread tensorarrayreadv3
    tensorarraygatherv3 tensorarrayconcatv3 tensorlistgetitem tensorliststack tensorlistconcatv2 tensorlistgather
    tensorlistpopback lookuptablefind lookuptablefindv2 lookuptableexport lookuptableexportv2
    """
)
# Primitives of JAX; those that are spelled like PyTorch operators are above.
_MOVES_OF_JAX: Final = words(
    """
    dynamic_update_slice iota bitcast_convert_type optimization_barrier sharding_constraint reshard layout_constraint pvary ppermute
    real imag random_seed random_split random_fold_in random_wrap random_unwrap random_clone threefry2x32 rng_bit_generator rng_uniform
    """
)
# Operators that add where several elements meet; on a device these are atomic additions.
_ATOMIC: Final = words(
    """
    scatter_add scatter-add unsortedsegmentsum index_add embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward scatter_reduce
    index_reduce segment_reduce
    """
)
# Moves by default, additions if an argument says so.
_ATOMIC_WHEN_ASKED: Final = words(
    "index_put put _unsafe_index_put _index_put_impl scatter scatterelements scatternd tensorscatter"
)
_READS_VARIABLE: Final = words("readvariableop resourcegather resourcegathernd variable variablev2")
_WRITES_VARIABLE: Final = ("resourceapply", "resourcesparseapply", "sparseapply", "assign", "resourcescatter", "apply")


def takes_out(op_type: str) -> bool:
    """Whether operators of this type return content of a container: a sequence, a list, a queue, a table."""
    return bare_name(op_type).lower() in _TAKES_OUT


def reads_variable(op_type: str) -> bool:
    """Whether a TensorFlow operator of this type returns the value of a variable."""
    return op_type.lower() in _READS_VARIABLE


def writes_variable(op_type: str) -> bool:
    """Whether a TensorFlow operator of this type changes the value of a variable, as an optimizer or an assignment does."""
    return op_type.lower().startswith(_WRITES_VARIABLE)


@lru_cache(maxsize=4096)
def class_of(op_type: str) -> OperatorClass:
    """The class of an operator by its type, in the spelling of any framework, in-place forms included."""
    name = bare_name(op_type).lower()
    concepts = {row.concept for row in rows_of(op_type)}
    if name in _CASTS:
        return "casts"
    if name in _CUBE_NAMES or not concepts.isdisjoint(_CUBE_CONCEPTS):
        return "cube"
    if op_type.lower() in _MOVES_OF_TENSORFLOW or name in _MOVES_OF_JAX:
        return "moves"
    if name in _MOVE_NAMES or name in _ATOMIC_WHEN_ASKED or not concepts.isdisjoint(_MOVE_CONCEPTS):
        return "moves"
    return "computes"


@lru_cache(maxsize=4096)
def _adds(op_type: str) -> bool | None:
    """Whether an operator adds atomically; None if its arguments decide."""
    name = bare_name(op_type).lower()
    return None if name in _ATOMIC_WHEN_ASKED else name in _ATOMIC


def adds_atomically(op_type: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a device would do the operator with atomic additions (`scatter_add`, `index_put` with `accumulate`)."""
    adds = _adds(op_type)
    if adds is not None:
        return adds
    reduction = arguments.get("reduce", arguments.get("reduction", "none"))
    return bool(arguments.get("accumulate")) or reduction not in (None, "none", "")
