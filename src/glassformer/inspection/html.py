def write_html(m,f): raise NotImplementedError
def notebook_frame(m): return None
