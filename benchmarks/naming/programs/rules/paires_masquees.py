"""Une liste de paires de poids : tous les jetons partout, un masque garde les siens ; nadam."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 78, "f": 142, "e": 5, "k": 2, "l": 2, "b": 2, "s": 58, "v": 346, "h": 3}
LARGE = {"d": 1152, "f": 1664, "e": 6, "l": 3, "b": 4, "s": 768, "v": 14336, "h": 9}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 12, "d": 12}}
LARGEUR, PROFONDEUR, NOMBRE, CHOISIS = (SIZES[n] for n in "dfek")


def lisser(x, pente, seuil):
    ecart = x - jnp.mean(x, -1, keepdims=True)  # is: norm
    carre = jnp.mean(ecart * ecart, -1, keepdims=True)  # is: norm
    return ecart / jnp.sqrt(carre + 1e-5) * pente + seuil  # is: norm


def ecouter(p, x):
    duree = x.shape[1]
    futur = jnp.arange(duree)[None, :] > jnp.arange(duree)[:, None]  # is: attention
    somme = p["fond"]
    for qui, quoi, combien, retour in p["oreilles"]:
        lien = jnp.einsum("bid,bjd->bij", x @ qui, x @ quoi)  # is: attention
        lien = lien * qui.shape[1] ** -0.5  # is: attention
        lien = jnp.where(futur, -1e9, lien)  # is: attention
        lien = jax.nn.softmax(lien, axis=-1)  # is: attention
        part = lien @ (x @ combien)  # is: attention
        somme = somme + part @ retour  # is: attention
    return somme


def deliberer(p, x):
    avis = jnp.tensordot(x, p["aiguille"], 1)  # is: router
    avis = jax.nn.softmax(avis, axis=-1)  # is: router
    borne = jnp.sort(avis, axis=-1)[..., NOMBRE - CHOISIS, None]  # is: router
    garde = avis >= borne  # is: router
    avis = jnp.where(garde, avis, 0.0)  # is: router
    avis = avis / jnp.sum(avis, axis=-1, keepdims=True)  # is: router
    total = jnp.zeros_like(x)  # is: unpermute|combine
    for i, (monter, descendre) in enumerate(p["paires"]):
        mien = garde[..., i, None]  # is: router|unpermute|combine
        force = avis[..., i, None]  # is: router|unpermute|combine
        y = x @ monter  # is: grouped_gemm
        y = jax.nn.elu(y)  # is: expert_elementwise
        y = y @ descendre  # is: grouped_gemm
        y = jnp.where(mien, y, 0.0)  # is: unpermute|combine
        total = total + force * y  # is: unpermute|combine
    return total


def parcourir(p, mots):
    x = p["mots"][mots] + p["rangs"]  # is: embedding
    for etage in p["etages"]:
        x = x + ecouter(etage, lisser(x, *etage["l1"]))  # is: attention
        x = x + deliberer(etage, lisser(x, *etage["l2"]))  # is: unpermute|combine
    return lisser(x, *p["l3"])


def erreur(p, mots, suite):
    x = parcourir(p, mots)
    z = jnp.matmul(x, p["sortie"])  # is: head
    z = z - jnp.max(z, axis=-1, keepdims=True)  # is: loss
    z = z - jnp.log(jnp.sum(jnp.exp(z), axis=-1, keepdims=True))  # is: loss
    juste = jnp.take_along_axis(z, suite[..., None], axis=-1)  # is: loss
    return -jnp.mean(juste)  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    regle = optax.nadamw(2e-3, weight_decay=0.01)

    def make():
        graines = iter(jax.random.split(jax.random.PRNGKey(41), 256))

        def tirer(*forme):
            return jax.random.normal(next(graines), forme) * forme[0] ** -0.5

        def plat():
            return jnp.ones(LARGEUR), jnp.zeros(LARGEUR)

        def etage():
            c = LARGEUR // SIZES["h"]
            oreilles = [
                (*(tirer(LARGEUR, c) for _ in range(3)), tirer(c, LARGEUR))
                for _ in range(SIZES["h"])
            ]
            paires = [
                (tirer(LARGEUR, PROFONDEUR), tirer(PROFONDEUR, LARGEUR)) for _ in range(NOMBRE)
            ]
            reste = {"l1": plat(), "l2": plat(), "fond": jnp.zeros(LARGEUR)}
            reste["aiguille"] = tirer(LARGEUR, NOMBRE)
            return {**reste, "oreilles": oreilles, "paires": paires}

        p = {"mots": tirer(SIZES["v"], LARGEUR), "rangs": tirer(SIZES["s"], LARGEUR)}
        p |= {"etages": [etage() for _ in range(SIZES["l"])], "l3": plat()}
        p["sortie"] = tirer(LARGEUR, SIZES["v"])
        suite = jax.random.randint(next(graines), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, regle.init(p), suite[:, :-1], suite[:, 1:]

    @jax.jit
    def avancer(p, memoire, mots, suite):
        valeur, pentes = jax.value_and_grad(erreur)(p, mots, suite)
        pentes, memoire = regle.update(pentes, memoire, p)  # is: optimizer
        return optax.apply_updates(p, pentes), memoire, valeur  # is: optimizer

    return avancer, make, None
