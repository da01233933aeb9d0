"""Programs of public bug reports about JAX: `python jax_reports.py NUMBER VARIANT` runs variant a or b."""

import sys

import jax
import jax.numpy as jnp
from jax import lax

number, variant = int(sys.argv[1]), sys.argv[2]
plain = variant == "a"


def maybe_jit(f):
    return f if plain else jax.jit(f)


if number == 939:
    from jax.scipy.special import logsumexp

    def f(params):
        x = params["loc"] + params["scale"] * jnp.array([-1.5, 0.0])
        near = 0.5 * ((jnp.linalg.norm(x, axis=-1) - 2) / 0.4) ** 2
        far = -0.5 * ((x[..., :1] + jnp.array([-2.0, 2.0])) / 0.6) ** 2
        return near - logsumexp(far, axis=-1)

    print(maybe_jit(jax.grad(f))({"loc": jnp.zeros(2), "scale": jnp.ones(2)}))
elif number == 3058:
    x = jnp.array([[1.0, 2.0], [0.0, 0.0]])
    print(jax.grad(lambda x: jnp.linalg.norm(x, axis=1).sum())(x))
elif number == 4177:
    print(jax.grad(lambda x: jnp.linalg.norm(x) ** 2)(jnp.zeros(2)))
elif number == 347:
    x = jnp.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])

    def f(x):
        size = jnp.sqrt(jnp.sum(x**2, axis=1))
        return jnp.sum(jnp.where(size > 0.5, size, 1.0))

    print(jax.grad(f)(x))
elif number == 2630:
    print(jax.grad(lambda x: jnp.where(x > 0, 0.0, x * jnp.inf))(1.0))
elif number == 4780:

    def f(values, mask):
        masked = jnp.where(mask, jnp.nan, values)
        return jnp.mean(values) + jnp.mean(masked) * 0.0

    print(maybe_jit(f)(jnp.array([1.0, 1.0]), jnp.array([False, True])))
elif number == 12949:
    x = jnp.sin(jnp.array(-6.9080677, dtype=jnp.float32))
    print(maybe_jit(lambda x: lax.sinh(jnp.add(x, jnp.float32(16))))(x))
elif number == 10129:
    x = jax.random.uniform(jax.random.PRNGKey(42), (2, 100))
    print(maybe_jit(lambda x: x.at[0].set(jnp.roll(x[0], 5, axis=-1)))(x).sum())
elif number == 6566:

    def f(mask, scores):
        scores = scores + -1.0 * 1e30 * (1.0 - mask)
        return scores - scores.max()

    print(maybe_jit(f)(jnp.array(1.0), jnp.array([0.7, 0.5])))
elif number == 26147:

    def f(x, s):
        y = x * (1.0 + s)
        return y**2 - x**2

    print(maybe_jit(f)(jnp.float32(0.1), jnp.float32(0.0)))
elif number == 22881:
    x = jnp.linspace(-2, 2, 101)
    f = (lambda x: jnp.cos(x / 2)) if plain else (lambda x: jnp.cos(x / 2) + 0 * jnp.sin(x / 2))
    print(jax.jit(jax.vmap(f))(x).sum())
elif number == 17070:

    def f(logits, where):
        weights = jax.nn.softmax(logits, axis=0, where=where)
        weights = weights * jnp.sum(weights) ** -1
        return jnp.sum(weights * -jnp.log2(weights), where=where, initial=1.0)

    print(jax.grad(f)(jnp.array([0.5, 1.0, -0.3]), jnp.array([True, False, True])))
elif number == 654:

    def f(x, charges):
        distance = jnp.linalg.norm(x[:, None] - x[None], axis=-1)
        keep = 1 - jnp.eye(len(x))
        energy = jnp.where(keep, charges[:, None] * charges[None] / distance, 0.0)
        return jnp.sum(jnp.where(keep, energy, 0.0))

    x = jnp.array([[0.06, -0.01, 0.22], [1.02, -0.20, 1.28], [2.39, 1.22, -0.22]])
    print(jax.grad(f)(x, jnp.array([1.3, 0.3, 0.3])))
elif number == 20856:
    x = jax.random.normal(jax.random.key(0), (3, 1, 1))
    print(maybe_jit(lambda x: jax.nn.softmax(x, axis=0))(x))
elif number == 37234:
    x = jnp.linspace(-3.0, 7.0, 6 * 14 * 14).reshape(6, 14, 14)

    def f(x):
        a = jnp.exp(jnp.clip(x, max=4)).sum(0)
        c = a @ (a @ a)
        c = jnp.einsum("ij,jk->ik", c, c.T)
        return jax.nn.softmax(c @ c.T * 0.27, axis=-1) @ a

    print(maybe_jit(f)(x).sum())
elif number == 40409:
    x = jnp.array([600.0, -600.0, 0.0, 10.0], dtype=jnp.float16)
    g = jnp.array([40000.0, 40000.0, 1.0, -40000.0], dtype=jnp.float16)
    out, back = jax.vjp(jax.nn.log_softmax, x)
    print(back(g))
elif number == 27231:
    key = jax.random.PRNGKey(0)
    x, w = jax.random.normal(key, (2, 3, 32)), jax.random.normal(key, (32, 32))
    print(maybe_jit(lambda x, w: jnp.mean((jnp.dot(x, w) - x) ** 2))(x, w))
else:
    raise SystemExit(f"no report {number}")
