"""Pairs of scripts: one with a planted fault, one without. Each is whole by itself but for the common head."""

from __future__ import annotations

from textwrap import dedent
from typing import NamedTuple

HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


class Twin(NamedTuple):
    """A fault, the line (of the text without its head) where it stands, and the same without it."""

    code: str
    what: str
    line: int
    bad: str
    good: str


def _twin(code: str, what: str, line: int, bad: str, good: str) -> Twin:
    return Twin(code, what, line, HEAD + dedent(bad).lstrip("\n"), HEAD + dedent(good).lstrip("\n"))


TWINS = [
    _twin("SRC001", "log of a product of probabilities", 4, """
        def agreement(a, b):
            p = torch.softmax(a, -1)
            q = torch.softmax(b, -1)
            return -torch.log((p * q).sum(-1)).mean()
        """, """
        def agreement(a, b):
            p = torch.log_softmax(a, -1)
            q = torch.log_softmax(b, -1)
            return -torch.logsumexp(p + q, -1).mean()
        """),
    _twin("SRC001", "log(1 - tanh(x)**2) of a squashed policy", 3, """
        def squash_correction(u):
            a = torch.tanh(u)
            return torch.log(1 - a.pow(2)).sum(-1)
        """, """
        def squash_correction(u):
            a = torch.tanh(u)
            return torch.log(1 - a.pow(2) + 1e-6).sum(-1)
        """),
    _twin("SRC001", "log of class frequencies", 2, """
        def prior(labels, classes):
            return torch.log(torch.bincount(labels, minlength=classes).float() / labels.numel())
        """, """
        def prior(labels, classes):
            counts = torch.bincount(labels, minlength=classes).float() + 1
            return torch.log(counts / counts.sum())
        """),
    _twin("SRC001", "Gumbel noise from rand", 2, """
        def gumbel(logits):
            return logits - torch.log(-torch.log(torch.rand_like(logits)))
        """, """
        def gumbel(logits):
            return logits - torch.empty_like(logits).exponential_().log()
        """),
    _twin("SRC001", "a ReLU under a log, into a called function", 2, """
        def poisson(rate, target):
            return (rate - target * torch.log(rate)).mean()


        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 1)

            def loss(self, x, y):
                return poisson(F.relu(self.fc(x)), y)
        """, """
        def poisson(rate, target):
            return (rate - target * torch.log(rate)).mean()


        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 1)

            def loss(self, x, y):
                return poisson(F.softplus(self.fc(x)) + 1e-6, y)
        """),
    _twin("SRC002", "softmax then log, two lines", 3, """
        def distil(student, target):
            p = F.softmax(student / 2.0, dim=-1)
            return -(target * p.log()).sum(-1).mean()
        """, """
        def distil(student, target):
            logp = F.log_softmax(student / 2.0, dim=-1)
            return -(target * logp).sum(-1).mean()
        """),
    _twin("SRC002", "log of a sigmoid", 2, """
        def reward_loss(chosen, rejected):
            return -torch.log(torch.sigmoid(chosen - rejected)).mean()
        """, """
        def reward_loss(chosen, rejected):
            return -F.logsigmoid(chosen - rejected).mean()
        """),
    _twin("SRC003", "clamp at 1e-8 in float16", 3, """
        def entropy(logits):
            p = torch.softmax(logits.half(), -1)
            return -(p * torch.log(p.clamp(min=1e-8))).sum(-1)
        """, """
        def entropy(logits):
            p = torch.softmax(logits.float(), -1)
            return -(p * torch.log(p.clamp(min=1e-8))).sum(-1)
        """),
    _twin("SRC003", "eps inside autocast", 6, """
        net = nn.Linear(4, 1)
        def step(x, y):
            with torch.autocast("cuda", dtype=torch.float16):
                p = torch.sigmoid(net(x))
                eps = 1e-8
                return -(y * torch.log(p + eps)).mean()
        """, """
        net = nn.Linear(4, 1)
        def step(x, y):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                p = torch.sigmoid(net(x))
                eps = 1e-8
                return -(y * torch.log(p + eps)).mean()
        """),
    _twin("SRC004", "an eps of 1e-20 as a default", 2, """
        class Norm(nn.Module):
            def __init__(self, dim, eps=1e-20):
                super().__init__()
                self.eps = eps

            def forward(self, x):
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        """, """
        class Norm(nn.Module):
            def __init__(self, dim, eps=1e-6):
                super().__init__()
                self.eps = eps

            def forward(self, x):
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        """),
    _twin("SRC005", "euclidean distance by hand", 2, """
        def contrastive(a, b):
            return torch.sqrt(((a - b) ** 2).sum(-1)).mean()
        """, """
        def contrastive(a, b):
            return torch.sqrt(((a - b) ** 2).sum(-1) + 1e-12).mean()
        """),
    _twin("SRC005", "root of a variance", 3, """
        def penalty(z):
            v = z.var(dim=0)
            return F.relu(1 - v.sqrt()).mean()
        """, """
        def penalty(z):
            s = z.std(dim=0)
            return F.relu(1 - s).mean()
        """),
    _twin("SRC005", "a learnable scale that starts at zero", 7, """
        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.zeros(8))

            def forward(self, x):
                return x * torch.sqrt(self.scale)
        """, """
        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.zeros(8))

            def forward(self, x):
                return x * F.softplus(self.scale)
        """),
    _twin("SRC006", "the one-pass variance", 2, """
        def spread(x):
            return torch.sqrt((x ** 2).mean(-1) - x.mean(-1) ** 2)
        """, """
        def spread(x):
            return x.std(-1)
        """),
    _twin("SRC007", "a norm over all weights, in the loss or in the log", 5, """
        def penalty(model):
            total = torch.zeros(())
            for p in model.parameters():
                total = total + p.norm(2) ** 2
            return total ** 0.5
        """, """
        def logged(model):
            total = 0.0
            for p in model.parameters():
                total += p.grad.data.norm(2).item() ** 2
            return total ** 0.5


        def logged_at_once(model):
            return sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5


        def on_the_device(model):
            total = 0.0
            for p in model.parameters():
                total += p.grad.data.norm(2) ** 2
            return total ** 0.5, (model.weight.data ** 2).sum() ** 0.5
        """),
    _twin("SRC005", "the root of a mean square, with a gradient and without", 2, """
        def error(x, y):
            return (x - y).square().mean().sqrt()
        """, """
        def shown(x, y, losses):
            rms = (x - y).detach().square().mean().sqrt()
            print((x - y).var(0).sqrt().cpu().data.numpy(), (x - y).square().mean().sqrt().cpu().tolist())
            return rms, torch.tensor(losses).square().mean().sqrt(), x.cpu().numpy().var() ** 0.5
        """),
    _twin("SRC007", "gamma correction of a sigmoid", 7, """
        class Mask(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 8)

            def loss(self, x, y):
                return (torch.sigmoid(self.fc(x)) ** 0.3 - y ** 0.3).pow(2).mean()
        """, """
        class Mask(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 8)

            def loss(self, x, y):
                return ((torch.sigmoid(self.fc(x)) + 1e-5) ** 0.3 - y ** 0.3).pow(2).mean()
        """),
    _twin("SRC007", "torch.pow of a product of softmaxes, in a called function", 2, """
        def score(p, q, beta):
            return torch.pow(p * q, beta).sum(-1)


        def loss(a, b):
            return score(a.softmax(-1), b.softmax(-1), 0.6).mean()
        """, """
        def score(p, q, beta):
            return torch.pow((p * q).clamp_min(1e-6), beta).sum(-1)


        def loss(a, b):
            return score(a.softmax(-1), b.softmax(-1), 0.6).mean()
        """),
    _twin("SRC008", "a masked mean over ignored labels", 4, """
        def token_loss(logits, labels):
            loss = F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
            keep = (labels != -100).float()
            return (loss * keep).sum() / keep.sum()
        """, """
        def token_loss(logits, labels):
            loss = F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
            keep = (labels != -100).float()
            return (loss * keep).sum() / keep.sum().clamp(min=1)
        """),
    _twin("SRC008", "a mask that is only known by its name", 2, """
        def masked_mean(values, loss_mask):
            return (values * loss_mask).sum() / loss_mask.sum()
        """, """
        def masked_mean(values, loss_mask):
            count = loss_mask.sum()
            if count == 0:
                return values.sum() * 0
            return (values * loss_mask).sum() / count
        """),
    _twin("SRC008", "positives of a detector", 3, """
        def box_loss(pred, target, scores):
            positive = scores > 0.5
            return (pred - target).abs()[positive].sum() / positive.sum()
        """, """
        def box_loss(pred, target, scores):
            positive = scores > 0.5
            return (pred - target).abs()[positive].sum() / max(1, positive.sum())
        """),
    _twin("SRC009", "standardising a clip", 2, """
        def standardise(audio):
            return (audio - audio.mean()) / audio.std()
        """, """
        def standardise(audio):
            return (audio - audio.mean()) / (audio.std() + 1e-5)
        """),
    _twin("SRC009", "min-max with named ends", 4, """
        def rescale(image):
            low = image.min()
            high = image.max()
            return (image - image.min()) / (image.max() - image.min())
        """, """
        def rescale(image):
            span = image.max() - image.min()
            if span == 0:
                return torch.zeros_like(image)
            return (image - image.min()) / span
        """),
    _twin("SRC010", "unit vectors by hand", 2, """
        def unit(x):
            return x / x.norm(dim=-1, keepdim=True)
        """, """
        def unit(x):
            return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        """),
    _twin("SRC011", "a softmax by hand", 2, """
        def attention(scores, values):
            weights = torch.exp(scores)
            weights = weights / weights.sum(-1, keepdim=True)
            return weights @ values
        """, """
        def attention(scores, values):
            weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
            weights = weights / weights.sum(-1, keepdim=True)
            return weights @ values
        """),
    _twin("SRC011", "logsumexp by hand", 2, """
        def energy(logits):
            return -torch.log(torch.sum(torch.exp(logits), dim=1))
        """, """
        def energy(logits):
            return -torch.logsumexp(logits, dim=1)
        """),
    _twin("SRC011", "softplus by hand", 2, """
        def hinge(x):
            return torch.log(1 + torch.exp(x)).mean()
        """, """
        def hinge(x):
            return F.softplus(x).mean()
        """),
    _twin("SRC012", "the angle between vectors", 2, """
        def angle(a, b):
            return torch.acos(F.cosine_similarity(a, b, dim=-1)).mean()
        """, """
        def angle(a, b):
            return torch.acos(F.cosine_similarity(a, b, dim=-1).clamp(-1 + 1e-6, 1 - 1e-6)).mean()
        """),
    _twin("SRC012", "atanh of a tanh", 3, """
        def invert(u):
            action = torch.tanh(u)
            return torch.atanh(action)
        """, """
        def invert(u):
            action = torch.tanh(u)
            return torch.atanh(action.clamp(-0.999, 0.999))
        """),
    _twin("SRC013", "advantages of a minibatch", 4, """
        def minibatches(advantages, size):
            for start in range(0, len(advantages), size):
                part = advantages[start : start + size]
                yield (part - part.mean()) / (part.std() + 1e-8)
        """, """
        def minibatches(advantages, size):
            for start in range(0, len(advantages), size):
                part = advantages[start : start + size]
                if part.numel() < 2:
                    continue
                yield (part - part.mean()) / (part.std() + 1e-8)
        """),
    _twin("SRC014", "log in a branch of where", 2, """
        def safe_log(x):
            return torch.where(x > 0, torch.log(x), torch.zeros_like(x))
        """, """
        def safe_log(x):
            inner = torch.where(x > 0, x, torch.ones_like(x))
            return torch.where(x > 0, torch.log(inner), torch.zeros_like(x))
        """),
    _twin("SRC014", "division in a branch of where", 2, """
        def ratio(a, b):
            return torch.where(b != 0, a / b, torch.zeros_like(a))
        """, """
        def ratio(a, b):
            return torch.where(b != 0, a / torch.where(b != 0, b, 1.0), torch.zeros_like(a))
        """),
    _twin("SRC015", "a clamped loss", 3, """
        def step(model, x, y):
            loss = F.cross_entropy(model(x), y)
            loss = torch.clamp(loss, max=100.0)
            loss.backward()
        """, """
        def step(model, x, y):
            loss = F.cross_entropy(model(x), y)
            if not torch.isfinite(loss):
                return
            loss.backward()
        """),
    _twin("SRC015", "nan_to_num on the loss", 3, """
        def step(model, x, y):
            loss = F.mse_loss(model(x), y)
            loss = torch.nan_to_num(loss)
            loss.backward()
        """, """
        def step(model, x, y):
            x = torch.nan_to_num(x)
            loss = F.mse_loss(model(x), y)
            loss.backward()
        """),
    _twin("SRC016", "a guard with a comparison", 4, """
        def train(model, loader, optimizer):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                if loss.item() > 1e4:
                    continue
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """, """
        def train(model, loader, optimizer):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                if not math.isfinite(loss.item()) or loss.item() > 1e4:
                    continue
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """),
    _twin("SRC017", "a norm asked for NaN alone", 7, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if torch.isnan(norm):
                    continue
                optimizer.step()
        """, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if not torch.isfinite(norm):
                    continue
                optimizer.step()
        """),
    _twin("SRC018", "zeroed and stepped", 6, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                if not torch.isfinite(loss):
                    for p in model.parameters():
                        p.grad.zero_()
                optimizer.step()
        """, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                if not torch.isfinite(loss):
                    optimizer.zero_grad()
                    continue
                optimizer.step()
        """),
    _twin("SRC019", "clip between scaled backward and step", 7, """
        def train(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """, """
        def train(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """),
    _twin("SRC020", "clip after the step", 7, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        """),
    _twin("SRC021", "unscaled for a look and for the clip", 7, """
        def train(model, loader, optimizer, scaler):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                scaler.unscale_(optimizer)
                seen = max(p.grad.abs().max() for p in model.parameters())
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """, """
        def train(model, loader, optimizer, scaler, clip):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                if clip:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                else:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
        """),
    _twin("SRC022", "the schedule at the head of the epoch", 3, """
        def train(model, loader, optimizer, scheduler):
            for epoch in range(10):
                scheduler.step()
                for x, y in loader:
                    optimizer.zero_grad()
                    F.mse_loss(model(x), y).backward()
                    optimizer.step()
        """, """
        def train(model, loader, optimizer, scheduler):
            for epoch in range(10):
                for x, y in loader:
                    optimizer.zero_grad()
                    F.mse_loss(model(x), y).backward()
                    optimizer.step()
                scheduler.step()

        def plateau(model, loader, optimizer, scheduler, score):
            for step, (x, y) in enumerate(loader):
                if step % 300 == 0:
                    scheduler.step(score(model))
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        """),
    _twin("SRC023", "the schedule follows the scaler blindly", 7, """
        def train(model, loader, optimizer, scheduler, scaler):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
        """, """
        def train(model, loader, optimizer, scheduler, scaler):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                scaler.step(optimizer)
                scale = scaler.get_scale()
                scaler.update()
                if scaler.get_scale() >= scale:
                    scheduler.step()
        """),
    _twin("SRC024", "a skip that keeps its gradients", 6, """
        def train(model, loader, optimizer):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                loss.backward()
                if not torch.isfinite(loss):
                    continue
                optimizer.step()
                optimizer.zero_grad()
        """, """
        def train(model, loader, optimizer):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                loss.backward()
                if not torch.isfinite(loss):
                    optimizer.zero_grad()
                    continue
                optimizer.step()
                optimizer.zero_grad()
        """),
    _twin("SRC025", "a running loss with its graph", 8, """
        def train(model, loader, optimizer):
            total = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss
            return total
        """, """
        def train(model, loader, optimizer):
            total = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss.item()
            return total
        """),
    _twin("SRC026", "a schedule resumed without its optimizer", 4, """
        def resume(path, model, optimizer, scheduler):
            state = torch.load(path)
            model.load_state_dict(state["model"])
            scheduler.load_state_dict(state["scheduler"])
        """, """
        def resume(path, model, optimizer, scheduler):
            state = torch.load(path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(state["scheduler"])
        """),
    _twin("SRC026", "a scaler that starts anew", 2, """
        def resume(path, model, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            state = torch.load(path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            return scaler
        """, """
        def resume(path, model, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            state = torch.load(path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scaler.load_state_dict(state["scaler"])
            return scaler
        """),
    _twin("SRC027", "the diagonal of a mixing matrix", 2, """
        def mix(m, x):
            return torch.einsum("bii,bij->bij", m, x)
        """, """
        def mix(m, x):
            return torch.einsum("bik,bkj->bij", m, x) + torch.einsum("bii->bi", m)[..., None]
        """),
    _twin("SRC028", "a parameter nobody initialises", 4, """
        class Token(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.token = nn.Parameter(torch.empty(1, dim))
        """, """
        class Token(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.token = nn.Parameter(torch.empty(1, dim))
                nn.init.normal_(self.token, std=0.02)
        """),
    _twin("SRC029", "Adam on a half model", 2, """
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        net.half()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
        """, """
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        teacher = nn.Linear(8, 1).half()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
        """),
    _twin("SRC030", "autocast by default, nothing scaled", 4, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
        """, """
        def train(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
        """),
    _twin("SRC031", "attention without a scale", 2, """
        def attend(q, k, v):
            weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
            return weights @ v
        """, """
        def attend(q, k, v):
            weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
            return weights @ v
        """),
    _twin("SRC032", "two additive masks", 5, """
        def mask(allowed, valid, dtype):
            least = torch.finfo(dtype).min
            causal = torch.zeros(4, 4).masked_fill(~allowed, least)
            padding = torch.zeros(4, 4).masked_fill(~valid, least)
            return causal + padding
        """, """
        def mask(allowed, valid, dtype):
            least = torch.finfo(dtype).min
            return torch.zeros(4, 4).masked_fill(~(allowed & valid), least)
        """),
    _twin("SRC033", "a norm in float16", 3, """
        def scale(update):
            small = update.half()
            return small / (small.norm() + 1e-3)
        """, """
        def scale(update):
            unit = update / (update.norm() + 1e-3)
            return unit.half()
        """),
    _twin("SRC034", "CTC with nothing for a short clip", 3, """
        def loss(logits, targets, frames, sizes):
            logp = logits.log_softmax(-1)
            return F.ctc_loss(logp, targets, frames, sizes)
        """, """
        def loss(logits, targets, frames, sizes):
            logp = logits.log_softmax(-1)
            return F.ctc_loss(logp, targets, frames, sizes, zero_infinity=True)
        """),
    _twin("SRC035", "labels from one", 3, """
        head = nn.Linear(16, 10)
        y = torch.randint(1, 11, (32,))
        loss = F.cross_entropy(head(torch.randn(32, 16)), y)
        """, """
        head = nn.Linear(16, 10)
        y = torch.randint(0, 10, (32,))
        loss = F.cross_entropy(head(torch.randn(32, 16)), y)
        """),
    _twin("SRC036", "a warm-up without end", 2, """
        def schedule(optimizer, warmup):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / warmup)
        """, """
        def schedule(optimizer, warmup):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
        """),
    _twin("SRC037", "nanmean over predictions", 3, """
        net = nn.Linear(4, 1)
        def loss(x, weight):
            return (net(x) * weight).nanmean()
        """, """
        net = nn.Linear(4, 1)
        def loss(x, weight):
            return (net(x) * torch.nan_to_num(weight)).mean()
        """),
    _twin("SRC038", "a deviation straight from a layer", 7, """
        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.mu, self.sigma = nn.Linear(8, 2), nn.Linear(8, 2)

            def forward(self, x):
                return torch.distributions.Normal(self.mu(x), F.relu(self.sigma(x)))
        """, """
        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.mu, self.sigma = nn.Linear(8, 2), nn.Linear(8, 2)

            def forward(self, x):
                return torch.distributions.Normal(self.mu(x), F.softplus(self.sigma(x)) + 1e-4)
        """),
    _twin("SRC039", "logdet of a Gram matrix", 2, """
        def volume(z):
            return torch.logdet(z.T @ z)
        """, """
        def volume(z):
            return torch.logdet(z.T @ z + 1e-4 * torch.eye(z.shape[1]))
        """),
    _twin("SRC040", "division by a sigmoid", 7, """
        class Heteroscedastic(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 1)

            def loss(self, x, error):
                return (error ** 2 / torch.sigmoid(self.fc(x))).mean()
        """, """
        class Heteroscedastic(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 1)

            def loss(self, x, error):
                return (error ** 2 / (torch.sigmoid(self.fc(x)) + 0.01)).mean()
        """),
    _twin("SRC041", "the rate of the command line", 3, """
        def build(net, args):
            optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
            optimizer.load_state_dict(torch.load(args.resume))
            return optimizer
        """, """
        def build(net, args):
            optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
            optimizer.load_state_dict(torch.load(args.resume))
            for group in optimizer.param_groups:
                group["lr"] = args.lr
            return optimizer
        """),
    _twin("SRC001", "binary cross entropy by hand, of a parameter", 2, """
        def bce(pred, target):
            return -(target * torch.log(pred) + (1 - target) * torch.log(1 - pred)).mean()
        """, """
        def bce(pred, target):
            pred = pred.clamp(1e-6, 1 - 1e-6)
            return -(target * torch.log(pred) + (1 - target) * torch.log(1 - pred)).mean()
        """),
    _twin("SRC001", "the entropy of something", 2, """
        def entropy(w):
            return -(w * torch.log(w)).sum(-1)
        """, """
        def entropy(w):
            return torch.special.entr(w).sum(-1)
        """),
    _twin("SRC013", "advantages of unknown number", 2, """
        def normalise(advantages):
            return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        """, """
        def normalise(advantages):
            return (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
        """),
    _twin("SRC016", "compared with NaN itself", 4, """
        def train(model, loader, optimizer):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                if loss == float("nan"):
                    continue
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """, """
        def train(model, loader, optimizer):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                if not torch.isfinite(loss):
                    continue
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """),
    _twin("SRC025", "losses gathered in a list", 8, """
        def train(model, loader, optimizer):
            losses = []
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss)
            return losses
        """, """
        def train(model, loader, optimizer):
            losses = []
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            return losses
        """),
    _twin("SRC042", "eps on a cosine", 2, """
        def project(x, t):
            return x / (torch.cos(t) + 1e-8)
        """, """
        def project(x, t):
            return x / (torch.cos(t).abs() + 1e-8)
        """),
    _twin("SRC043", "a log-deviation from a layer", 7, """
        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.log_std = nn.Linear(8, 4)

            def forward(self, x):
                return torch.exp(0.5 * self.log_std(x))
        """, """
        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.log_std = nn.Linear(8, 4)

            def forward(self, x):
                return torch.exp(0.5 * self.log_std(x).clamp(-20, 2))
        """),
    _twin("SRC044", "a mean over positives", 3, """
        def positive_loss(error, target):
            keep = target > 0
            return error[keep].mean()
        """, """
        def positive_loss(error, target):
            keep = target > 0
            if not keep.any():
                return error.sum() * 0
            return error[keep].mean()
        """),
    _twin("SRC045", "an additive mask of infinity", 2, """
        def mask_scores(scores, mask):
            return torch.softmax(scores + (1.0 - mask) * float("-inf"), dim=-1)
        """, """
        def mask_scores(scores, mask):
            return torch.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1)
        """),
    _twin("SRC046", "nothing but ignored labels", 3, """
        head = nn.Linear(8, 5)
        y = torch.full((4,), -100)
        loss = F.cross_entropy(head(torch.randn(4, 8)), y)
        """, """
        head = nn.Linear(8, 5)
        y = torch.full((4,), 3)
        loss = F.cross_entropy(head(torch.randn(4, 8)), y)
        """),
    _twin("SRC047", "a sample that is all padding", 4, """
        mha = nn.MultiheadAttention(16, 2, batch_first=True)
        x = torch.randn(2, 3, 16)
        pad = torch.tensor([[False, False, True], [True] * 3])
        y, _ = mha(x, x, x, key_padding_mask=pad)
        """, """
        mha = nn.MultiheadAttention(16, 2, batch_first=True)
        x = torch.randn(2, 3, 16)
        pad = torch.tensor([[False, False, True], [False, True, True]])
        y, _ = mha(x, x, x, key_padding_mask=pad)
        """),
    _twin("SRC039", "the singular vectors of an identity", 2, """
        w = torch.eye(4, requires_grad=True)
        u, s, v = torch.linalg.svd(w)
        u.sum().backward()
        """, """
        w = torch.eye(4, requires_grad=True)
        s = torch.linalg.svdvals(w)
        s.sum().backward()
        """),
    _twin("SRC010", "a trust ratio", 2, """
        def trust(weight, update):
            return weight.norm() / update.norm()
        """, """
        def trust(weight, update):
            return weight.norm() / update.norm().clamp_min(1e-6)
        """),
    _twin("SRC028", "a buffer nobody fills", 4, """
        class Statistics(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.register_buffer("mean", torch.empty(size))
        """, """
        class Statistics(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.register_buffer("mean", torch.empty(size))
                self.mean.zero_()
        """),
    _twin("SRC005", "a leaf of zeros", 2, """
        x = torch.zeros(3, requires_grad=True)
        y = x.sqrt().sum()
        y.backward()
        """, """
        x = torch.zeros(3, requires_grad=True)
        y = (x + 1e-6).sqrt().sum()
        y.backward()
        """),
    _twin("SRC010", "a cosine by hand", 2, """
        def cosine(a, b):
            return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
        """, """
        def cosine(a, b):
            return F.cosine_similarity(a, b, dim=-1)
        """),
    _twin("SRC012", "acos of a dot product", 3, """
        def geodesic(a, b):
            dot = (a * b).sum(-1)
            return torch.acos(dot)
        """, """
        def geodesic(a, b):
            dot = (a * b).sum(-1).clamp(-0.9999, 0.9999)
            return torch.acos(dot)
        """),
    _twin("SRC038", "a raw parameter as a scale", 7, """
        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.mu, self.sigma = nn.Linear(8, 2), nn.Parameter(torch.ones(2))

            def forward(self, x):
                return torch.distributions.Normal(self.mu(x), self.sigma)
        """, """
        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.mu, self.log_sigma = nn.Linear(8, 2), nn.Parameter(torch.zeros(2))

            def forward(self, x):
                return torch.distributions.Normal(self.mu(x), self.log_sigma.clamp(-20, 2).exp())
        """),
    _twin("SRC008", "dice of empty masks", 4, """
        def dice(logits, image):
            truth = (image > 0.5).float()
            guess = F.relu(logits)
            return 1 - 2 * (guess * truth).sum() / (guess.sum() + truth.sum())
        """, """
        def dice(logits, image):
            truth = (image > 0.5).float()
            guess = F.relu(logits)
            return 1 - (2 * (guess * truth).sum() + 1) / (guess.sum() + truth.sum() + 1)
        """),
    _twin("SRC013", "the variance of a mini-batch of outputs", 5, """
        net = nn.Linear(4, 3)
        def epoch(rows):
            for start in range(0, len(rows), 4):
                z = net(rows[start : start + 4])
                yield z.var(dim=0).mean()
        """, """
        net = nn.Linear(4, 3)
        def epoch(rows):
            for start in range(0, len(rows), 4):
                z = net(rows[start : start + 4])
                yield z.var(dim=0, correction=0).mean()
        """),
    _twin("SRC002", "the log of what a module of the file gives", 9, """
        class Classifier(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=-1))
            def forward(self, x):
                return self.body(x)
        net = Classifier()
        def loss(x, y):
            return -torch.log(net(x).gather(1, y)).mean()
        """, """
        class Classifier(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(8, 4), nn.LogSoftmax(dim=-1))
            def forward(self, x):
                return self.body(x)
        net = Classifier()
        def loss(x, y):
            return -net(x).gather(1, y).mean()
        """),
    _twin("SRC040", "weights that may all be zero", 3, """
        def weighted(values, raw):
            weights = F.relu(raw)
            return (values * weights).sum() / weights.sum()
        """, """
        def weighted(values, raw):
            weights = F.relu(raw)
            return (values * weights).sum() / (weights.sum() + 1e-6)
        """),
]  # fmt: skip
