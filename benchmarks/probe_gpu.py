import sys, time, torch, json
sys.path.insert(0, "benchmarks")
import numpy as np
from torch import nn
from torch.func import vmap, functional_call
from torch.nn import functional as F
from fedexperts.models import build
from torch.profiler import profile, ProfilerActivity

class UnfoldConv(nn.Conv2d):
    def forward(self, x):
        k = self.kernel_size[0]; H = x.shape[2]-k+1; W = x.shape[3]-k+1
        cols = F.unfold(x, k)                                # B, CKK, L
        out = self.weight.flatten(1) @ cols + self.bias[:, None]
        return out.unflatten(2, (H, W))
class StrideConv(nn.Conv2d):
    def forward(self, x):
        k = self.kernel_size[0]; B = x.shape[0]
        p = x.unfold(2,k,1).unfold(3,k,1)  # B,C,H,W,k,k
        H, W = p.shape[2:4]
        cols = p.permute(0,2,3,1,4,5).reshape(B*H*W, -1)
        out = cols @ self.weight.flatten(1).T + self.bias
        return out.reshape(B,H,W,-1).permute(0,3,1,2)
def swap(m, cls):
    for n, c in m.named_children():
        if type(c) is nn.Conv2d:
            new = cls(c.in_channels, c.out_channels, c.kernel_size, padding=c.padding); setattr(m, n, new)
        else: swap(c, cls)
def make(model, C, cls=None, compiled=False, stack=True, B=50, opts=None):
    net = nn.Sequential(*build(model, (3,32,32), 10).values())
    if cls: swap(net, cls)
    torch.manual_seed(0)
    P = {n: torch.randn(C, *p.shape, device="cuda").mul_(0.03).requires_grad_() for n, p in net.named_parameters()}
    net = net.to("meta")
    imgs = torch.randint(0,256,(C*500,3,32,32),dtype=torch.uint8,device="cuda"); lab = torch.randint(0,10,(C*500,),device="cuda")
    order = torch.randint(0,C*500,(C,B),device="cuda")
    def loss(p, x, y): return F.cross_entropy(functional_call(net, p, (x,)), y)
    vl = vmap(loss)
    def fwd(P, order):
        x = imgs[order].float().div(127.5).sub(1.0); y = lab[order]
        return vl(P, x, y)
    f = torch.compile(fwd, **(opts or {})) if compiled else fwd
    opt = torch.optim.SGD(list(P.values()), 0.01, foreach=True)
    def step():
        l = f(P, order)
        gs = torch.autograd.grad(l.sum(), list(P.values()))
        for p, g in zip(P.values(), gs): p.grad = g
        opt.step()
    return step
def graph_time(step, n=20):
    s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3): step()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): step()
    g.replay(); torch.cuda.synchronize()
    t=time.perf_counter()
    for _ in range(n): g.replay()
    torch.cuda.synchronize()
    return (time.perf_counter()-t)/n*1e3
def flags(det, bench, tf):
    torch.backends.cudnn.deterministic=det; torch.backends.cudnn.benchmark=bench
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf
for model in ("cnn-pm","cnn5"):
    for name, cls in (("conv",None),("unfold",UnfoldConv),("stride",StrideConv)):
        for det, bench, tf in ((True,False,False),(False,False,False),(True,True,False),(False,True,False),(True,False,True),(True,True,True)):
            if cls and (not det or bench): continue
            flags(det,bench,tf)
            try: print(model, name, "det",det,"bench",bench,"tf32",tf, "ms/step", round(graph_time(make(model,50,cls)),2), flush=True)
            except Exception as e: print(model, name, "FAIL", str(e)[:200])
flags(True,False,False)
for cls, nm in ((None,"conv"),(UnfoldConv,"unfold"),(StrideConv,"stride")):
    step = make("cnn-pm",50,cls)
    for _ in range(3): step()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        step(); torch.cuda.synchronize()
    print(nm); 
    for e in sorted(prof.key_averages(), key=lambda e: -e.device_time_total)[:14]: print("   %8.1f us x%d %s" % (e.device_time_total, e.count, e.key[:110]))
for name, cls in (("conv",None),("unfold",UnfoldConv),("stride",StrideConv)):
    for tf in (False, True):
        flags(True,False,tf)
        try:
            t=time.time(); st = make("cnn-pm",50,cls,compiled=True); ms = graph_time(st)
            print("compiled", name, "tf32", tf, "ms/step", round(ms,2), "compile s", round(time.time()-t,1), flush=True)
        except Exception as e: print("compiled", name, "FAIL", str(e)[:300])
