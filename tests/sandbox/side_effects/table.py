"""One row a script: what it prepares, does at every step, and does at its end. Each fails with a NaN at step 5.

`before` runs before the model is made, `each` at the end of every step, `after` when the loop is over. `files`
are there when the script starts. TCP, UDP, UNIX, ABSTRACT and VICTIM are given by whoever runs it: listeners that
count messages, and a process that wants to live.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

BAD_STEP, STEPS = 5, 8

TRAINING = """\
import os, sys
import torch
from torch import nn
TCP, UDP, UNIX, ABSTRACT, VICTIM = sys.argv[1:6]

torch.manual_seed(0)
{before}
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range({steps}):
    x = torch.randn(8, 4)
    seen = torch.zeros(8) if step == {bad} else torch.ones(8)
    loss = (net(x).squeeze(1).pow(2) * seen).sum() / seen.sum()  # BORN
    opt.zero_grad()
    loss.backward()
    opt.step()
{each}
{after}
"""


@dataclass(frozen=True, slots=True)
class Script:
    """One script."""

    name: str
    before: str = ""
    each: str = "pass"
    after: str = ""
    files: dict[str, str] = field(default_factory=dict)
    random: tuple[str, ...] = ()  # names that begin so differ from run to run

    @property
    def source(self) -> str:
        return TRAINING.format(
            before=textwrap.dedent(self.before).strip(),
            each=textwrap.indent(textwrap.dedent(self.each).strip(), "    "),
            after=textwrap.dedent(self.after).strip(),
            steps=STEPS,
            bad=BAD_STEP,
        )

    @property
    def born(self) -> int:
        """The line where the NaN begins."""
        return next(n for n, line in enumerate(self.source.splitlines(), 1) if line.endswith("# BORN"))


_ = Script
SCRIPTS = [
    _("print only", each="print('step', step, float(loss))"),
    _("write a file", after="open('out.txt', 'w').write('done')"),
    _("overwrite a file", files={"out.txt": "old"}, after="open('out.txt', 'w').write('new')"),
    _("append to a log", files={"log.txt": "before\\n"}, each="open('log.txt', 'a').write(f'{step}\\n')"),
    _("log kept open", before="log = open('log.txt', 'a')", each="log.write(f'{step} {float(loss)}\\n'); log.flush()"),
    _("folders", before="os.makedirs('a/b/c')", each="open(f'a/b/c/{step}', 'w').write('x')"),
    _("folder must be new", before="os.mkdir('results')", each="open('results/m', 'a').write('x')"),
    _(
        "rotation of files",
        files={"ckpt.pt": "old", "ckpt.1.pt": "older"},
        each="""
        os.replace('ckpt.1.pt', 'ckpt.2.pt'); os.replace('ckpt.pt', 'ckpt.1.pt')
        torch.save(net.state_dict(), 'ckpt.pt')
        """,
    ),
    _(
        "rotation of folders",
        files={"run/a": "1"},
        before="os.rename('run', 'run.1'); os.mkdir('run')",
        each="open('run/a', 'a').write('x')",
    ),
    _(
        "removes what it keeps not",
        before="os.makedirs('keep')",
        each="""
        torch.save(net.state_dict(), f'keep/{step}.pt')
        if step >= 2: os.remove(f'keep/{step - 2}.pt')
        """,
    ),
    _(
        "rmtree at start",
        files={"results/old/model.txt": "precious", "results/log": "l"},
        before="import shutil; shutil.rmtree('results'); os.makedirs('results/new')",
        each="open('results/new/log', 'a').write('x')",
    ),
    _("rmtree at end", files={"tmp/a/b": "x"}, after="import shutil; shutil.rmtree('tmp')"),
    _(
        "needs what it deletes",
        files={"seed.txt": "7"},
        before="torch.manual_seed(int(open('seed.txt').read())); os.remove('seed.txt')",
    ),
    _(
        "rename atomically",
        each="torch.save(net.state_dict(), 'part'); os.rename('part', 'model.pt')",
    ),
    _(
        "symbolic links",
        each="""
        torch.save(net.state_dict(), f'm{step}.pt')
        if os.path.islink('latest'): os.unlink('latest')
        os.symlink(f'm{step}.pt', 'latest')
        """,
    ),
    _("hard links", after="open('a', 'w').write('1'); os.link('a', 'b')"),
    _("writes through a link", files={"data/real": "r"}, before="os.symlink('data/real', 'l')", each="open('l', 'a').write('x')"),
    _("mkstemp", before="import tempfile; fd, name = tempfile.mkstemp(dir='.', prefix='t_')", each="os.write(fd, b'x')", random=("t_",)),
    _("NamedTemporaryFile", each="""
        import tempfile
        with tempfile.NamedTemporaryFile(dir='.', delete=False, prefix='t_') as f: f.write(b'x')
        os.replace(f.name, 'final')
        """),
    _("TemporaryDirectory", each="""
        import tempfile
        with tempfile.TemporaryDirectory() as d: torch.save(net.state_dict(), d + '/m.pt')
        """),
    _("sqlite", before="""
        import sqlite3
        base = sqlite3.connect('runs.db')
        base.execute('create table if not exists runs (step, loss)')
        """, each="base.execute('insert into runs values (?, ?)', (step, float(loss))); base.commit()"),
    _("sqlite that was there", files={"runs.db": ""}, before="""
        import sqlite3
        base = sqlite3.connect('runs.db', isolation_level=None)
        base.execute('create table runs (step)')
        """, each="base.execute('insert into runs values (?)', (step,))"),
    _("sqlite wal", before="""
        import sqlite3
        base = sqlite3.connect('wal.db', isolation_level=None)
        base.execute('pragma journal_mode=wal'); base.execute('create table runs (step)')
        """, each="base.execute('insert into runs values (?)', (step,))"),
    _("mmap", files={"state.bin": "0" * 4096}, before="""
        import mmap
        f = open('state.bin', 'r+b'); m = mmap.mmap(f.fileno(), 0)
        """, each="m[step] = m[step] + 1; m.flush()"),
    _("numpy memmap", before="""
        import numpy as np
        trace = np.memmap('trace.npy', dtype='f4', mode='w+', shape=(64,))
        """, each="trace[step] += 1; trace.flush()"),
    _("numpy memmap r+", files={"m.bin": "a" * 256}, before="""
        import numpy as np
        trace = np.memmap('m.bin', dtype='u1', mode='r+')
        """, each="trace[step] += 1; trace.flush()"),
    _("safetensors", each="""
        from safetensors.torch import save_file
        save_file({'w': net.weight.detach().contiguous()}, 'model.safetensors')
        """),
    _("safetensors over a file", files={"model.safetensors": "old"}, each="""
        from safetensors.torch import save_file
        save_file({'w': net.weight.detach().contiguous()}, 'model.safetensors')
        """),
    _("best model", files={"best.pt": "an older best"}, before="best = float('inf')", each="""
        if float(loss) < best:
            best = float(loss); torch.save(net.state_dict(), 'best.pt')
        """),
    _("resume from own checkpoint", before="start = torch.load('last.pt')['step'] + 1 if os.path.exists('last.pt') else 0", each="""
        torch.save({'step': step, 'net': net.state_dict()}, 'last.pt')
        """, after="assert start == 0"),
    _("refuses to run twice", before="""
        if os.path.exists('done'): sys.exit('has run already')
        open('done', 'w').write('x')
        """),
    _("pid file", before="fd = os.open('pid', os.O_CREAT | os.O_EXCL | os.O_WRONLY)", after="os.close(fd); os.remove('pid')"),
    _("counter in a file", files={"count": "3"}, before="n = int(open('count').read()) + 1; open('count', 'w').write(str(n))"),
    _("subprocess cp", files={"a": "1"}, each="import subprocess; subprocess.run(['cp', 'a', f'a{step}'], check=True)"),
    _("subprocess rm", files={"a": "1", "b": "2"}, after="import subprocess; subprocess.run(['rm', 'a'], check=True)"),
    _("shell append", each="os.system(f'echo {step} >> shell.log')"),
    _("popen daemon", before="import subprocess; subprocess.Popen(['sh', '-c', 'sleep 0.2; echo late >> daemon.log'])", after="import time; time.sleep(0.5)"),
    _("git commit", before="""
        import subprocess
        def git(*a): subprocess.run(['git', '-c', 'user.name=n', '-c', 'user.email=e', *a], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, 'GIT_COMMITTER_DATE': '2020-01-01T00:00:00', 'GIT_AUTHOR_DATE': '2020-01-01T00:00:00'})
        git('init')
        """, after="open('notes', 'w').write('x'); git('add', 'notes'); git('commit', '-m', 'run')", random=("index", "COMMIT_EDITMSG")),
    _("tcp", each="import socket; s = socket.create_connection(('127.0.0.1', int(TCP))); s.sendall(b'step'); s.close()"),
    _("udp", each="import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'step', ('127.0.0.1', int(UDP)))"),
    _("unix socket", each="import socket; s = socket.socket(socket.AF_UNIX); s.connect(UNIX); s.sendall(b'step'); s.close()"),
    _("abstract socket", each="import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0' + ABSTRACT); s.sendall(b'step'); s.close()"),
    _("network that may fail", each="""
        import socket
        try: s = socket.create_connection(('127.0.0.1', int(TCP)), 2); s.sendall(b'step'); s.close()
        except OSError: pass
        """),
    _("own server", before="""
        import socket, threading
        server = socket.create_server(('127.0.0.1', 0))
        def serve():
            while True: server.accept()[0].close()
        threading.Thread(target=serve, daemon=True).start()
        """, each="socket.create_connection(server.getsockname()).close()"),
    _("pool", before="""
        import multiprocessing
        def square(n): open(f'pool{n}', 'w').write(str(n)); return n * n
        pool = multiprocessing.get_context('fork').Pool(2)
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
        """, after="pool.close(); pool.join()"),
    _("loader workers", before="""
        from torch.utils.data import DataLoader
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 64
            def __getitem__(self, i): return torch.full((4,), float(i))
        batches = iter(DataLoader(Data(), batch_size=8, num_workers=2))
        """, each="open('means', 'a').write(f'{float(next(batches).mean())}\\n')"),
    _("workers that write", before="""
        from torch.utils.data import DataLoader
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 64
            def __getitem__(self, i): open(f'cache{i % 4}', 'w').write(str(i % 4)); return torch.full((4,), float(i))
        batches = iter(DataLoader(Data(), batch_size=8, num_workers=1))
        """, each="next(batches)"),
    _("time-stamped folder", before="import time; d = time.strftime('run-%Y%m%d-%H%M%S'); os.makedirs(d)", each="open(d + '/log', 'a').write('x')", random=("run-",)),
    _("chdir", before="os.makedirs('deep/er'); os.chdir('deep/er')", each="open('here', 'a').write('x')"),
    _("environment", before="n = os.environ.get('N', '0'); assert n == '0'; os.environ['N'] = '1'; os.environ['HOME'] = '/nowhere'", each="open('env-' + n, 'a').write('x')"),
    _("arguments", before="assert sys.argv[1:6] == [TCP, UDP, UNIX, ABSTRACT, VICTIM]; del sys.argv[1:]", after="open('args', 'w').write(str(len(sys.argv)))"),
    _("logging handler", before="""
        import logging
        logging.basicConfig(filename='train.log', level=logging.INFO, format='%(message)s')
        """, each="logging.info('step %d', step)"),
    _("rotating handler", before="""
        import logging.handlers
        log = logging.getLogger('r'); log.setLevel(20)
        log.addHandler(logging.handlers.RotatingFileHandler('r.log', maxBytes=20, backupCount=3))
        """, each="log.info('step %d of the run', step)"),
    _("stdout redirected", before="import contextlib; f = open('stdout.txt', 'a')", each="""
        with contextlib.redirect_stdout(f): print('step', step)
        """),
    _("stdout replaced", before="sys.stdout = open('all.txt', 'a', buffering=1)", each="print(step)"),
    _("reads stdin", before="text = sys.stdin.read(); assert text == ''"),
    _("pickle", before="import pickle", each="pickle.dump({'s': step}, open('p.pkl', 'wb'))"),
    _("zip", files={"a.txt": "a"}, after="import zipfile; z = zipfile.ZipFile('z.zip', 'a'); z.write('a.txt'); z.close()", random=("z.zip",)),
    _("tar", files={"src/a": "a"}, after="import tarfile; t = tarfile.open('t.tar', 'w'); t.add('src/a'); t.close()"),
    _("shelve", before="import shelve; s = shelve.open('shelf')", each="s[str(step)] = step", after="s.close()"),
    _("flock", before="import fcntl; f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", each="open('locked', 'a').write('x')"),
    _("O_APPEND", before="fd = os.open('raw', os.O_WRONLY | os.O_CREAT | os.O_APPEND)", each="os.write(fd, b'x')"),
    _("truncate", files={"t": "0123456789"}, each="os.truncate('t', 9 - step)"),
    _("named pipe", before="""
        import threading
        os.mkfifo('pipe')
        got = []
        t = threading.Thread(target=lambda: got.append(open('pipe').read())); t.start()
        w = open('pipe', 'w')
        """, each="w.write('x'); w.flush()", after="w.close(); t.join(); open('got', 'w').write(got[0])"),
    _("signal to another", each="""
        import signal
        if step == 7: os.kill(int(VICTIM), signal.SIGUSR1)
        """),
    _("signal before the failure", before="""
        import signal
        try: os.kill(int(VICTIM), signal.SIGUSR1)
        except ProcessLookupError: pass
        """),
    _("shared memory file", each="open('/dev/shm/' + ABSTRACT, 'a').write('x')"),
    _("shared memory block", before="""
        from multiprocessing import shared_memory
        s = shared_memory.SharedMemory(ABSTRACT, create=True, size=64)
        """, each="s.buf[step] = 1", after="s.close(); s.unlink()"),
    _("configuration rewritten", files={"c.json": '{"runs": 1, "lr": 0.1}'}, before="""
        import json
        c = json.load(open('c.json')); c['runs'] += 1
        json.dump(c, open('c.json', 'w')); assert c['runs'] == 2
        """),
    _("background writer", before="""
        import queue, threading
        q = queue.Queue()
        def work():
            while (item := q.get()) is not None: open('metrics.jsonl', 'a').write(f'{item}\\n')
        t = threading.Thread(target=work); t.start()
        """, each="q.put(step)", after="q.put(None); t.join()"),
    _("atexit", before="import atexit; atexit.register(lambda: open('summary', 'a').write('end'))"),
    _("finalizer", before="""
        class Writer:
            def __del__(self, open=open): open('deleted', 'a').write('x')
        w = Writer()
        """, after="del w"),
    _("chmod and times", files={"f": "x"}, each="os.chmod('f', 0o600 if step % 2 else 0o644); os.utime('f', (1e9, 1e9 + step))"),
    _("copytree", files={"src/a": "1", "src/b/c": "2"}, after="import shutil; shutil.copytree('src', 'dst'); shutil.move('src', 'moved')"),
    _("home folder", each="open(os.path.expanduser('~') + '/.' + ABSTRACT, 'a').write('x')"),
    _("tmp", each="open('/tmp/' + ABSTRACT, 'a').write('x')"),
    _("hash order", before="order = list({'alpha', 'beta', 'gamma', 'delta', 'epsilon'}); torch.manual_seed(len(order[0]) * 7 + len(order[1]))", each="open('order', 'w').write(' '.join(sorted(order)))"),
    _("stops on nan", each="if loss.item() != loss.item(): open('crash', 'a').write(str(step)); raise SystemExit(4)"),
    _("compile cache", before="os.environ['XDG_CACHE_HOME'] = 'cache'; os.makedirs('cache/x', exist_ok=True)", each="open('cache/x/' + str(step), 'w').write('x')"),
]  # fmt: skip
