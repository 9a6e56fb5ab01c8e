"""Krok uczenia na czterech kartach."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DEVICES = 4
SIZES = {"d": 56, "f": 104, "e": 4, "l": 2, "b": 4, "s": 32, "v": 288, "h": 4}
LARGE = {"d": 2048, "f": 8192, "e": 16, "l": 4, "b": 16, "s": 1024, "v": 32768, "h": 16}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
szer, ukryta, ilu, pietra = (SIZES[n] for n in "dfel")
partia, dlugosc, slownik, glowy = (SIZES[n] for n in "bsvh")
miejsca = max(4, dlugosc * 2 * 5 // (4 * ilu))

uklad = {
    "slowa": PartitionSpec("wiersz", "kolumna"),
    "wyjscie": PartitionSpec("wiersz", "kolumna"),
    "koniec": PartitionSpec(),
    "pietra": {
        "n1": PartitionSpec(),
        "n2": PartitionSpec(),
        "pyt": PartitionSpec(None, "wiersz", "kolumna"),
        "klucz": PartitionSpec(None, "wiersz", "kolumna"),
        "wart": PartitionSpec(None, "wiersz", "kolumna"),
        "zlacz": PartitionSpec(None, "kolumna", None, "wiersz"),
        "wybor": PartitionSpec(),
        "tam": PartitionSpec(None, "kolumna", "wiersz"),
        "tam0": PartitionSpec(None, "kolumna"),
        "spow": PartitionSpec(None, "kolumna", None, "wiersz"),
        "spow0": PartitionSpec(None, "kolumna"),
    },
}


def wyrownaj(x, waga):
    y = x.astype(jnp.float32)  # is: norm
    y = y - y.mean(-1, keepdims=True)  # is: norm
    y = y / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)  # is: norm
    return (y * waga).astype(x.dtype)  # is: norm


def spojrz(w, x):
    q = jnp.einsum("gsd,dhk->gshk", x, w["pyt"])  # is: attention
    k = jnp.einsum("gsd,dhk->gshk", x, w["klucz"])  # is: attention
    v = jnp.einsum("gsd,dhk->gshk", x, w["wart"])  # is: attention
    q = q * (szer // glowy) ** -0.5  # is: attention
    wynik = jnp.einsum("gshk,gthk->ghst", q, k, preferred_element_type=jnp.float32)  # is: attention
    zaslona = np.tri(dlugosc, dtype=bool)
    wynik = jnp.where(zaslona, wynik, -1e9)  # is: attention
    wynik = jax.nn.softmax(wynik, axis=-1).astype(x.dtype)  # is: attention
    y = jnp.einsum("ghst,gthk->gshk", wynik, v)  # is: attention
    return jnp.einsum("gshk,hkd->gsd", y, w["zlacz"])  # is: attention


def rozdziel(w, x):
    szanse = jnp.einsum("gsd,de->gse", x.astype(jnp.float32), w["wybor"])  # is: router
    szanse = jax.nn.softmax(szanse, axis=-1)  # is: router
    pierwszy = jax.nn.one_hot(szanse.argmax(-1), ilu)  # is: router
    reszta = szanse * (1 - pierwszy)  # is: router
    drugi = jax.nn.one_hot(reszta.argmax(-1), ilu)  # is: router
    kara = (szanse.mean(1) * pierwszy.mean(1)).sum(-1).mean() * ilu  # is: router|loss
    ile1 = (szanse * pierwszy).sum(-1)  # is: router
    ile2 = (szanse * drugi).sum(-1)  # is: router
    razem = ile1 + ile2 + 1e-9  # is: router
    numer1 = jnp.cumsum(pierwszy, axis=1) - pierwszy  # is: router|permute
    zajete = pierwszy.sum(1, keepdims=True)  # is: router|permute
    numer2 = jnp.cumsum(drugi, axis=1) - drugi + zajete  # is: router|permute
    rozklad = jnp.zeros((*szanse.shape, miejsca), x.dtype)  # is: router|permute
    for ile, kto, numer in ((ile1, pierwszy, numer1), (ile2, drugi, numer2)):
        numer = (numer * kto).sum(-1).astype(jnp.int32)  # is: router|permute
        gdzie = jax.nn.one_hot(numer, miejsca, dtype=x.dtype)  # is: router|permute
        udzial = (ile / razem)[..., None] * kto  # is: router|permute
        udzial = udzial.astype(x.dtype)  # is: router|permute
        rozklad = rozklad + udzial[..., None] * gdzie[:, :, None, :]  # is: router|permute
    return rozklad, kara


def build(devices):
    """Step, its arguments, and where they lie."""
    siatka = Mesh(np.array(devices).reshape(2, 2), ("wiersz", "kolumna"))

    def miejsce(*osie):
        return NamedSharding(siatka, PartitionSpec(*osie))

    def trzymaj(x, *osie):
        return jax.lax.with_sharding_constraint(x, miejsce(*osie))

    def warstwa(w, x):
        rozklad, kara = rozdziel(w, x)
        rozklad = trzymaj(rozklad, "wiersz", None, "kolumna")
        komu = (rozklad > 0).astype(x.dtype)  # is: router|permute
        paczki = jnp.einsum("gsec,gsd->egcd", komu, x)  # is: permute|dispatch
        paczki = trzymaj(paczki, "kolumna", "wiersz")  # is: permute|dispatch
        y = jnp.einsum("egcd,edf->egcf", paczki, w["tam"])  # is: grouped_gemm
        y = jax.nn.gelu(y + w["tam0"][:, None, None])  # is: expert_elementwise
        y = jnp.einsum("egcf,efd->egcd", y, w["spow"])  # is: grouped_gemm
        y = y + w["spow0"][:, None, None]  # is: expert_elementwise
        y = trzymaj(y, "kolumna", "wiersz")
        y = jnp.einsum("gsec,egcd->gsd", rozklad, y)  # is: unpermute|combine
        return trzymaj(y, "wiersz"), kara  # is: unpermute|combine

    def przebieg(w, slowa):
        x = w["slowa"].astype(jnp.bfloat16)[slowa]  # is: embedding
        x = trzymaj(x, "wiersz")  # is: embedding

        def pietro(x, w):
            pol = {n: m.astype(jnp.bfloat16) for n, m in w.items() if n != "wybor"}
            pol["wybor"] = w["wybor"]
            x = x + spojrz(pol, wyrownaj(x, w["n1"]))  # is: attention
            x = trzymaj(x, "wiersz")  # is: attention
            y, kara = warstwa(pol, wyrownaj(x, w["n2"]))
            return x + y, kara  # is: unpermute|combine

        x, kara = jax.lax.scan(pietro, x, w["pietra"])
        x = wyrownaj(x, w["koniec"])
        y = jnp.einsum("gsd,dv->gsv", x, w["wyjscie"].astype(x.dtype))  # is: head
        return trzymaj(y, "wiersz", None, "kolumna"), kara.mean()  # is: head

    def koszt(w, slowa):
        y, kara = przebieg(w, slowa[:, :-1])
        y = y.astype(jnp.float32)  # is: head|loss
        cel = jax.nn.one_hot(slowa[:, 1:], slownik, dtype=y.dtype)  # is: loss
        strata = optax.softmax_cross_entropy(y, cel).mean()  # is: loss
        return strata + 0.01 * kara, strata  # is: loss

    przepis = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-3, b2=0.98))

    def make():
        klucze = iter(jax.random.split(jax.random.key(1410), 16))

        def losuj(*ksztalt, z):
            return jax.random.normal(next(klucze), ksztalt) * z**-0.5

        d, f, e, n, h, k = szer, ukryta, ilu, pietra, glowy, szer // glowy
        w = {"n1": jnp.ones((n, d)), "n2": jnp.ones((n, d))}
        w |= {nazwa: losuj(n, d, h, k, z=d) for nazwa in ("pyt", "klucz", "wart")}
        w |= {"zlacz": losuj(n, h, k, d, z=d * n), "wybor": losuj(n, d, e, z=d)}
        w |= {"tam": losuj(n, e, d, f, z=d), "tam0": jnp.zeros((n, e, f))}
        w |= {"spow": losuj(n, e, f, d, z=f * n), "spow0": jnp.zeros((n, e, d))}
        w = {"slowa": losuj(slownik, d, z=1), "pietra": w, "koniec": jnp.ones(d)}
        w["wyjscie"] = losuj(d, slownik, z=d)
        slowa = jax.random.randint(next(klucze), (partia, dlugosc + 1), 0, slownik)
        return w, przepis.init(w), slowa

    def krok(w, stan, slowa):
        (_, strata), g = jax.value_and_grad(koszt, has_aux=True)(w, slowa)
        g, stan = przepis.update(g, stan, w)  # is: optimizer
        w = optax.apply_updates(w, g)  # is: optimizer
        return w, stan, strata

    polozenie = jax.tree.map(lambda osie: NamedSharding(siatka, osie), uklad)
    _, stan, _ = jax.eval_shape(make)
    stan = optax.tree_map_params(
        przepis, lambda _, s: s, stan, polozenie, transform_non_params=lambda _: miejsce()
    )
    wejscie = (polozenie, stan, miejsce("wiersz"))
    krok = jax.jit(krok, in_shardings=wejscie, out_shardings=(polozenie, stan, miejsce()))
    return krok, make, wejscie
